"""The formats of a model, and the parser of one answer."""

from __future__ import annotations

import pytest

from baton.errors import InvalidRequest
from baton.output_parsing import CallStart, Content, Reasoning
from baton.protocol import TokenizerInfo
from baton_gateway.output_formats import OutputFormats, ToolOptions, output_formats
from baton_gateway.pieces import merge

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
AUTO = ToolOptions((TOOL,), "auto")
TEXT = 'hm</think>\n<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>'


def formats(**names: str) -> OutputFormats:
    return output_formats(TokenizerInfo("m", 1, **names))  # type: ignore[arg-type]


def test_a_tokenizer_names_them_or_declares_them() -> None:
    assert formats() == OutputFormats()
    named = formats(tool_call_parser="hermes", reasoning_parser="qwen3")
    assert (named.tools.name, named.reasoning.name) == ("hermes", "qwen3")  # type: ignore[union-attr]
    declared = b'{"fields": {"tool_calls": {"open": "<<", "close": ">>", "content": "json"}}}'
    info = TokenizerInfo("m", 1, tool_call_parser="response_template", response_template=declared)
    parser = output_formats(info).parser(AUTO, "content", "x")
    assert parser is not None
    pieces = parser.feed('<<{"name": "add", "arguments": {}}>>', last=True)
    assert any(isinstance(piece, CallStart) for piece in pieces)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_an_answer_is_read_in_any_cut(size: int) -> None:
    both = formats(tool_call_parser="hermes", reasoning_parser="qwen3")
    parser = both.parser(AUTO, both.start("hi <think>\n", AUTO), "x")
    assert parser is not None and parser.thinking
    pieces = tuple[()]()
    for at in range(0, len(TEXT), size):
        pieces = merge(pieces, parser.feed(TEXT[at : at + size], last=at + size >= len(TEXT)))
    assert pieces[0] == Reasoning("hm") and not parser.thinking
    assert [piece.name for piece in pieces if isinstance(piece, CallStart)] == ["add"]
    assert (parser.reason("stop"), parser.reason("length")) == ("tool_calls", "length")


@pytest.mark.parametrize("size", [1, 1000])
def test_an_answer_that_may_call_once_has_its_first_call_alone(size: int) -> None:
    one = '<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>'
    broken = one[:-20]
    for text in (one + one + broken, one):
        pieces = tuple[()]()
        parser = formats(tool_call_parser="hermes").parser(
            ToolOptions((TOOL,), "auto", parallel=False), "content", "x"
        )
        assert parser is not None
        for at in range(0, len(text), size):
            last = at + size >= len(text)
            pieces = merge(pieces, parser.feed(text[at : at + size], last=last))
        calls = [p for p in pieces if not isinstance(p, Content)]
        assert [type(p).__name__ for p in calls] == ["CallStart", "Arguments", "CallEnd"]
        assert parser.reason("stop") == "tool_calls"


def test_a_demanded_call_that_is_cut_off_leaves_no_piece_of_itself_as_content() -> None:
    both = formats(tool_call_parser="hermes", reasoning_parser="qwen3")
    call, partial = TEXT.removeprefix("hm</think>\n"), '<tool_call>\n{"name": "'
    for choice in ("required", "add", "auto"):
        for cut in (*range(1, len(partial)), len(call)):
            parser = both.parser(ToolOptions((TOOL,), choice), "thinking", "x")
            assert parser is not None
            pieces = parser.feed("hm</think>\n") + parser.feed(call[:cut], last=True)
            assert pieces[0] == Reasoning("hm") and not parser.thinking
            text = "".join(piece.text for piece in pieces if isinstance(piece, Content))
            assert text.strip() == (
                call[:cut].strip() if choice == "auto" and cut < len(call) else ""
            )


def test_a_constrained_answer_thinks_first_where_thinking_is_between_tags() -> None:
    options = ToolOptions(constrained=True)
    tagged = formats(reasoning_parser="qwen3")
    assert tagged.thinking_tags == ("<think>", "</think>")
    assert tagged.start("<think>\n", options) == "thinking"
    both = formats(reasoning_parser="gpt_oss")
    assert both.thinking_tags is None
    parser = both.parser(options, both.start("<think>\n", options), "x")
    assert parser is not None and parser.feed('{"a": 1}', last=True) == (Content('{"a": 1}'),)


def test_what_a_schema_asks_and_no_format_can_guarantee_is_refused() -> None:
    bad = {"type": "string", "format": "no-such-format"}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": bad}}}}
    options = ToolOptions((tool,), "required")
    with pytest.raises(InvalidRequest) as caught:
        formats(tool_call_parser="qwen3_xml").grammar(options, "content")
    assert (caught.value.code, caught.value.param) == ("invalid_function_parameters", "tools")
