from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from baton.output_parsing.parser import OutputParser
from baton.output_parsing.pieces import Arguments, Content, Piece, Reasoning
from baton.output_parsing.reasoning_format import ReasoningFormat, Start
from baton.output_parsing.reasoning_formats import REASONING_FORMATS
from baton.output_parsing.source import delimiters
from baton.output_parsing.tool_format import ToolReader
from baton.output_parsing.tool_formats import TOOL_FORMATS
from tests.support.model_outputs import EXAMPLES, TOOLS, parse, pieces_of, read, tool_format

_GLUE = ("{", "}", "[", '"', "\\", ", ", ":", "\n", " ", "'", "=", "(", ")", "x", "1", "</", "é🙂")
_STARTS: tuple[Start, ...] = ("thinking", "content", "unknown")
CUTS = st.lists(st.integers(1, 400), max_size=30)
WORDS = st.lists(st.integers(0, 999), max_size=12)


def vocabulary(row: ToolReader) -> list[str]:
    """What a confused model could write: parts of examples, delimiters, and glue."""
    words = list(_GLUE) + list(row.openers)
    for example in EXAMPLES:
        if example.parser in (row.name, *row.aliases):
            text = example.text
            words += [text, text[: len(text) // 2], text[len(text) // 2 :], text[:-3], text[7:]]
    return words


VOCABULARIES = {row.name: vocabulary(row) for row in TOOL_FORMATS}


def garbage(row: ToolReader, picks: list[int]) -> str:
    """A text of the row's vocabulary."""
    words = VOCABULARIES[row.name]
    return "".join(words[pick % len(words)] for pick in picks)


def fed(parser: OutputParser, parts: list[str]) -> list[Piece]:
    """All pieces, not put together."""
    return [piece for part in parts for piece in parser.feed(part)] + parser.finish()


@settings(max_examples=40, deadline=None)
@given(WORDS, CUTS)
def test_where_the_text_is_cut_makes_no_difference(picks: list[int], cuts: list[int]) -> None:
    for row in TOOL_FORMATS:
        text = garbage(row, picks)
        whole = parse(text, row.name)
        assert parse(text, row.name, cuts=cuts) == whole
        assert parse(text, row.name, cuts=range(len(text))) == whole
        for call in whole.tool_calls:
            assert isinstance(json.loads(call.arguments), dict)


@settings(max_examples=25, deadline=None)
@given(WORDS, CUTS, st.sampled_from(_STARTS))
def test_where_thinking_is_cut_makes_no_difference(
    picks: list[int], cuts: list[int], start: Start
) -> None:
    hermes = tool_format("hermes")
    for row in REASONING_FORMATS:
        tags = [*getattr(row, "openers", ()), *getattr(row, "closers", ())]
        words = [*tags, *tags, "<answer>", "</answer>", "<response>\n", "\n</response>", "a", "\n"]
        text = "".join(words[pick % len(words)] for pick in picks) + garbage(hermes, picks)
        whole = parse(text, "hermes", row.name, start=start)
        assert parse(text, "hermes", row.name, start=start, cuts=cuts) == whole
        assert parse(text, "hermes", row.name, start=start, cuts=range(len(text))) == whole


@settings(max_examples=40, deadline=None)
@given(st.text(alphabet="ab <>[]{}|/_`\"'\n:,;✿", max_size=60))
def test_text_that_is_no_call_stays_content(text: str) -> None:
    for row in TOOL_FORMATS:
        message = parse(text, row.name, cuts=range(len(text)))
        assert message.content == (text or None)
        assert not message.tool_calls and message.error is None


@settings(max_examples=40, deadline=None)
@given(st.text(alphabet="a <[|tol_cf\n", max_size=40))
def test_only_what_could_be_a_delimiter_is_held_back(text: str) -> None:
    for row in TOOL_FORMATS:
        if row.naked if hasattr(row, "naked") else True:
            continue
        parser, wanted, seen = OutputParser(row, None), delimiters(*row.openers), ""
        prose = "Prose:" + text
        for i, char in enumerate(prose):
            seen += "".join(p.text for p in parser.feed(char) if isinstance(p, Content))
            held = prose[len(seen) : i + 1]
            assert not held or wanted.open(held)


@settings(max_examples=40, deadline=None)
@given(st.text(alphabet="a <[|/THINKthinkedr:\n", max_size=40))
def test_thinking_is_held_back_only_while_it_could_end(text: str) -> None:
    for row in REASONING_FORMATS:
        if not isinstance(row, ReasoningFormat) or not row.openers or row.in_content:
            continue
        parser, wanted, seen = OutputParser(None, row, start="thinking"), row.closers, ""
        thought = "So:" + text
        for i, char in enumerate(thought):
            seen += "".join(p.text for p in parser.feed(char) if isinstance(p, Reasoning))
            held = thought[len(seen) : i + 1]
            assert not held or delimiters(*wanted).open(held)


@settings(max_examples=30, deadline=None)
@given(WORDS, CUTS, st.integers(0, 400))
def test_a_replay_of_the_text_restores_the_state(
    picks: list[int], cuts: list[int], place: int
) -> None:
    for row in TOOL_FORMATS:
        text = garbage(row, picks)
        before, after = text[:place], pieces_of(text[place:], cuts)
        parsers = [OutputParser(row, None, tools=TOOLS, call_id_seed="s") for _ in range(2)]
        parsers[0].feed(before)
        for part in pieces_of(before, cuts):
            parsers[1].feed(part)
        assert fed(parsers[0], after) == fed(parsers[1], after)


def test_long_arguments_arrive_as_they_come() -> None:
    for example in EXAMPLES:
        long = "word " * 400
        text = example.text.replace("a.py", long)
        if long not in text or (example.parser == "seed_oss" and f"\n{long}" in text):
            # Only the end of a value says whether a newline at its beginning is part of it.
            continue
        parser, begin, seen = OutputParser(tool_format(example.parser), None, tools=TOOLS), 0, ""
        for i, char in enumerate(text):
            seen += "".join(p.text for p in parser.feed(char) if isinstance(p, Arguments))
            begin = text.index(long)
            if begin + 100 < i < begin + len(long):
                assert i - begin - seen.count("word ") * 5 < 12, example.text


def test_prose_and_thinking_arrive_as_they_come() -> None:
    parser = OutputParser(tool_format("hermes"), REASONING_FORMATS[0], start="thinking")
    assert parser.feed("So") == [Reasoning("So")]
    assert parser.feed(" <") == [Reasoning(" ")]
    assert parser.feed("b></think>A") == [Reasoning("<b>"), Content("A")]
    assert parser.feed(" <tool") == [Content(" ")]
    assert parser.finish() == [Content("<tool")]


def test_without_formats_everything_is_content() -> None:
    assert parse("<think>a</think><tool_call>{}").content == "<think>a</think><tool_call>{}"
    assert parse("").content is None


def test_no_call_comes_out_where_the_request_wants_none() -> None:
    for example in EXAMPLES:
        parser = OutputParser(tool_format(example.parser), None, tool_choice="none")
        message = read(parser, [f"Prose. {example.text}"])
        assert not message.tool_calls and message.error is None
        assert message.content is not None and message.content.startswith("Prose. ")


def test_ids_are_a_function_of_the_seed() -> None:
    def ids(seed: str) -> list[str]:
        row = tool_format("json")
        text = '[{"name": "a", "arguments": {}}, {"name": "b", "arguments": {}}]'
        return [c.id for c in read(OutputParser(row, None, call_id_seed=seed), [text]).tool_calls]

    assert ids("x") == ids("x") != ids("y")
    assert len(set(ids("x"))) == 2 and all(i.startswith("call_") for i in ids("x"))


def test_what_was_read_is_not_kept() -> None:
    """Work per token does not grow with the text."""
    body = json.dumps({"name": "write_file", "arguments": {"path": "x" * 30_000}})
    parser = OutputParser(tool_format("hermes"), None)
    longest = 0
    for char in f"{'Prose. ' * 3000}<tool_call>{body}</tool_call>":
        parser.feed(char)
        longest = max(longest, len(parser._stages[0]._source.text))
    assert longest < 100
