from __future__ import annotations

from tests.support.model_outputs import calls_of, parse


def call(inside: str) -> str:
    return f"<start_function_call>call:f{inside}<end_function_call>"


def test_values() -> None:
    for text, arguments in (
        ("{}", {}),
        ("{a:1,b:-2.5,c:true,d:null}", {"a": 1, "b": -2.5, "c": True, "d": None}),
        ("{a:<escape>true<escape>}", {"a": "true"}),
        ('{a:<escape>x, {y}: "z"\n<end><escape>}', {"a": 'x, {y}: "z"\n<end>'}),
        ("{a:[1,[<escape>x<escape>],{b:{}}], c:[]}", {"a": [1, ["x"], {"b": {}}], "c": []}),
        ("{<escape>a b<escape>:1}", {"a b": 1}),
        ("{a:<escape><escape>}", {"a": ""}),
    ):
        message = parse(call(text), "functiongemma")
        assert calls_of(message) == [("f", arguments)], text
        assert parse(call(text), "functiongemma", cuts=range(200)) == message


def test_what_is_no_call_is_text() -> None:
    for text in (call(""), call("(a)"), call("{a}"), "<start_function_call>hello"):
        assert parse(text, "functiongemma").content == text


def test_a_call_that_has_begun_and_cannot_be_read_is_an_error() -> None:
    for text, kind in (
        (call("{a:1,b:Paris}"), "invalid_tool_call"),
        (call("{a:1 b:2}"), "invalid_tool_call"),
        ("<start_function_call>call:f{a:1,", "incomplete_tool_call"),
        ("<start_function_call>call:f{a:<escape>x", "incomplete_tool_call"),
    ):
        message = parse(text, "functiongemma")
        assert message.error is not None and message.error.type == kind, text
