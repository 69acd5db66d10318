from __future__ import annotations

from baton.output_parsing.bodies.json_calls import JsonCalls
from baton.output_parsing.message import Message
from baton.output_parsing.parser import OutputParser
from baton.output_parsing.tool_format import ToolFormat
from tests.support.model_outputs import calls_of, read

ROW = ToolFormat("row", ("<c>",), JsonCalls(("</c>",)), naked="{", swallowed=("<a>",))
CALL = '{"name": "f", "arguments": {"x": "<c>"}}'


def parse(text: str) -> Message:
    return read(OutputParser(ROW, None), [text])


def test_white_space_before_a_call_is_dropped_and_before_prose_is_kept() -> None:
    assert parse(f"\n <c>{CALL}</c>\n ").content is None
    assert parse(" \n prose \n ").content == " \n prose \n "
    assert parse(f" \n prose <c>{CALL}").content == " \n prose "


def test_prose_goes_on_behind_a_call() -> None:
    message = parse(f"a<c>{CALL}</c> b<c>{CALL}</c><|im_end|>")
    assert message.content == "ab" and len(message.tool_calls) == 2


def test_a_call_begins_the_text_without_an_opener() -> None:
    assert calls_of(parse(f"\n{CALL}")) == [("f", {"x": "<c>"})]
    assert parse(f"Try {CALL}").content == f"Try {CALL}"


def test_a_failed_opener_is_text_and_the_next_one_is_tried() -> None:
    message = parse(f"<c><c> <c>{CALL}</c>")
    assert message.content == "<c><c> " and len(message.tool_calls) == 1


def test_swallowed_delimiters_are_not_content() -> None:
    assert parse("<a>b").content == "b"


def test_nothing_is_read_behind_an_error() -> None:
    message = parse('<c>{"name": "f", "arguments": {oops}}</c>more')
    assert message.content is None and message.tool_calls == []
    assert message.error is not None and message.error.type == "invalid_tool_call"
    assert message.finish_reason == "stop"
