from __future__ import annotations

from baton.output_parsing.message import Message
from baton.output_parsing.parser import OutputParser
from baton.output_parsing.reasoning_format import Answer, ReasoningFormat, Start
from tests.support.model_outputs import parse, read

ANSWER = Answer(("<a>\n", "<a>"), ("\n</a>", "</a>"), holds_calls=False)
ROW = ReasoningFormat("row", ("<t>",), ("</t>",), answer=ANSWER)


def split(text: str, start: Start = "thinking") -> tuple[str | None, str | None]:
    message: Message = read(OutputParser(None, ROW, start=start), [text])
    return message.reasoning, message.content


def test_thinking_that_the_template_opened() -> None:
    assert split("\nso</t>\n\nyes") == ("so", "yes")
    assert split("so") == ("so", None)
    assert split("<t>\n<t>so</t>yes") == ("so", "yes")
    assert split("</t>yes") == (None, "yes")


def test_thinking_that_the_model_opens() -> None:
    assert split("<t>so</t>yes", "content") == ("so", "yes")
    assert split("\n<t>so", "content") == ("so", None)
    assert split("\n\n</t>\nyes", "content") == (None, "yes")
    assert split("yes</t>yes", "content") == (None, "yes</t>yes")
    assert split("\nyes <t>", "content") == (None, "\nyes <t>")


def test_a_second_opener_is_text() -> None:
    assert split("so</t>a <t>b</t>") == ("so", "a <t>b</t>")


def test_tags_of_the_answer_are_no_content() -> None:
    assert split("so</t>\n<a>\nyes\n</a>\nmore") == ("so", "yesmore")
    assert split("so</t><a>yes") == ("so", "yes")
    assert split("<a>yes</a>", "content") == (None, "yes")
    assert split("so</t>about <a>yes</a>") == ("so", "about <a>yes</a>")


def test_where_the_text_begins() -> None:
    assert ROW.start("user: <t>\nassistant: <t>\n") == "thinking"
    assert ROW.start("user: <t>\nassistant: <t>\n\n</t>\n\n") == "content"
    assert ROW.start("user: <t>\nassistant:") == "content"


def test_the_default_of_a_family() -> None:
    def starts(opened: str) -> list[Start]:
        row = ReasoningFormat("row", ("<t>",), ("</t>",), opened_by_template=opened)  # type: ignore[arg-type]
        return [row.default_start(thinking) for thinking in (None, True, False)]

    assert starts("yes") == ["thinking", "thinking", "content"]
    assert starts("perhaps") == ["unknown", "unknown", "content"]
    assert starts("on request") == ["content", "thinking", "content"]
    assert starts("no") == ["content"] * 3


def test_an_unknown_start_is_thinking_unless_a_call_comes_at_once() -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert parse(f"\n{call}", "hermes", "qwen3", start="unknown").tool_calls
    message = parse(f"a {call}</think>b", "hermes", "qwen3", start="unknown")
    assert not message.tool_calls and message.content == "b"


def test_calls_while_thinking_are_none() -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    message = parse(f"{call}</think>{call}", "hermes", "deepseek_r1", start="thinking")
    assert message.reasoning == call and len(message.tool_calls) == 1
    message = parse(f"{call}", "hermes", "deepseek_r1", start="thinking")
    assert message.reasoning == call and not message.tool_calls
