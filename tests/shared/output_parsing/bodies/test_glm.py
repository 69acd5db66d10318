from __future__ import annotations

from tests.support.model_outputs import calls_of, parse

ARGUMENT = "<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"


def test_a_call_of_an_unknown_function() -> None:
    text = f"<tool_call>f\n{ARGUMENT}</tool_call>"
    assert calls_of(parse(text, "glm45", tools=None)) == [("f", {"city": "Paris"})]


def test_newlines_around_a_key() -> None:
    text = "<tool_call>f<arg_key>\ncity\n</arg_key><arg_value>Paris</arg_value></tool_call>"
    assert calls_of(parse(text, "glm47")) == [("f", {"city": "Paris"})]


def test_what_is_no_call_is_text() -> None:
    for text in (
        "<tool_call>hello there</tool_call>",
        '<tool_call>{"name": "f"}</tool_call>',
        "<tool_call>f",
        "<tool_call></tool_call>",
        "<tool_call>f<arg_key>a</arg_key>b",
    ):
        assert parse(text, "glm47").content == text


def test_a_call_that_is_cut_off_is_an_error() -> None:
    for text, kind in (
        (f"<tool_call>f\n{ARGUMENT}", "incomplete_tool_call"),
        (f"<tool_call>f\n{ARGUMENT}<arg_key>b</arg_key>", "incomplete_tool_call"),
        (f"<tool_call>f\n{ARGUMENT}oops", "invalid_tool_call"),
        (f"<tool_call>f\n{ARGUMENT}<arg_key>b</arg_key>x</tool_call>", "invalid_tool_call"),
    ):
        message = parse(text, "glm45")
        assert message.error is not None and message.error.type == kind, text
        assert not message.tool_calls


def test_calls_of_a_block() -> None:
    call = f"<tool_call>f<tool_sep>\n{ARGUMENT}</tool_call>"
    text = f"<tool_calls>{call}\n{call}</tool_calls>"
    assert calls_of(parse(text, "hy_v3")) == [("f", {"city": "Paris"})] * 2
    assert parse("<tool_calls>hello", "hy_v3").content == "<tool_calls>hello"
