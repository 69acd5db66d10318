from __future__ import annotations

import json

from baton.output_parsing.bodies.json_calls import JsonCalls
from baton.output_parsing.message import Message
from baton.output_parsing.parser import OutputParser
from baton.output_parsing.pieces import Content
from baton.output_parsing.tool_format import ToolFormat
from tests.support.model_outputs import calls_of, function, read

ROW = ToolFormat("row", ("<c>",), JsonCalls(("</c>",), id_pattern="[a-z]{3}"))
NAKED = ToolFormat("row", (), JsonCalls(named_by_tools=True), naked="{[")


def parse(text: str, row: ToolFormat = ROW) -> Message:
    whole = read(OutputParser(row, None, tools=[function("f")]), [text])
    assert read(OutputParser(row, None, tools=[function("f")]), text) == whole
    return whole


ONE_CALL = [
    ('{"name": "f", "arguments": {"a": "}]"}}', {"a": "}]"}),
    ('{"name": "f", "parameters": {"a": 1}}', {"a": 1}),
    ('{"arguments": {"a": 1}, "name": "f"}', {"a": 1}),
    ('{"arguments": {"name": "g"}, "type": "function", "name": "f"}', {"name": "g"}),
    ('{"name": "f", "arguments": "{\\"a\\": 1}"}', {"a": 1}),
    ('{"name": "f", "arguments": ""}', {}),
    ('{"name": "f", "arguments": null}', {}),
    ('{"name": "f"}', {}),
    ('{"type": "function", "name": "f", "arguments": {}, "more": [1]}', {}),
    ('{"name": "f", "arguments": {"a": 1}}}', {"a": 1}),
    ('{"name": "f", "arguments": {"a": 1}', {"a": 1}),
    ('\n {\n"name" :"f" ,"arguments":{ }\n}\n', {}),
    ('{"name": "f", "arguments": {"a": 12345678901234567890}}', {"a": 12345678901234567890}),
]


def test_one_call() -> None:
    for text, arguments in ONE_CALL:
        for closed in (f"<c>{text}</c>", f"<c>{text}", f"<c>{text}</"):
            message = parse(closed)
            assert calls_of(message) == [("f", arguments)]
            assert message.content is None and message.error is None


SEPARATORS = [", ", ",\n", "\n", "; ", ";"]


def test_several_calls() -> None:
    for between in SEPARATORS:
        one = '{"name": "f", "arguments": {"a": [1]}}'
        for text in (f"<c>{one}{between}{one}</c>", f"<c>[{one}{between}{one}]</c>"):
            assert calls_of(parse(text)) == [("f", {"a": [1]})] * 2


NO_CALLS = [
    *("{}", "[]", '{"name": 3}', '{"name": "two words"}', '{"arguments": {}}', "hello", ""),
    *('{"name": "f", "city": "Paris"}', '{"name": "f", "arguments": [1]}', '{"name": "f'),
    *('{"name": "f", "arguments": "Paris"}', "{'name': 'f'}", '{"name" "f"}', '{"name": "f" 3'),
]


def test_what_is_no_call_is_text() -> None:
    for text in NO_CALLS:
        message = parse(f"<c>{text}</c>")
        assert message.content == f"<c>{text}</c>" and not message.tool_calls and not message.error


ERRORS = [
    ('<c>{"name": "f", "arguments": {"a": ', "incomplete_tool_call"),
    ('<c>{"name": "f", "arguments": {"a": "b', "incomplete_tool_call"),
    ('<c>{"name": "f", "arguments": {"a": b}}</c>', "invalid_tool_call"),
]


def test_a_call_that_has_begun_and_cannot_be_read_is_an_error() -> None:
    for text, kind in ERRORS:
        message = parse(text)
        assert message.error is not None and message.error.type == kind
        assert not message.tool_calls and message.content is None


def test_calls_before_a_bad_one_stand() -> None:
    message = parse('<c>[{"name": "f", "arguments": {}}, {"name": 3}]</c>')
    assert len(message.tool_calls) == 1 and message.content == ', {"name": 3}]</c>'


def test_the_closing_brace_of_the_object_is_no_argument() -> None:
    call = parse('<c>{"name": "f", "arguments": {}}</c>').tool_calls[0]
    assert call.arguments == "{}"


def test_ids_of_the_model() -> None:
    def made(**keys: object) -> str:
        return parse(f"<c>{json.dumps(keys | {'name': 'f', 'arguments': {}})}").tool_calls[0].id

    assert made(id="abc") == "abc"
    assert made(id="abcd").startswith("call_") and made(id=3).startswith("call_")


def test_an_answer_in_json_is_not_held_back() -> None:
    parser = OutputParser(NAKED, None)
    assert parser.feed('{"answer"') == []
    assert parser.feed(': "It') == [Content('{"answer": "It')]
    assert parser.feed(" is") == [Content(" is")]


def test_without_an_opener_an_object_must_say_that_it_is_a_call() -> None:
    assert calls_of(parse('{"name": "f"}', NAKED)) == [("f", {})]
    assert parse('{"name": "g"}', NAKED).content == '{"name": "g"}'
    assert calls_of(parse('{"name": "g", "arguments": {}}', NAKED)) == [("g", {})]
