from __future__ import annotations

from tests.support.model_outputs import calls_of, parse


def test_calls_of_a_list() -> None:
    for text in ("[a.b(x=1,), g()]", "[a.b(x=1), g(),]", "[ a.b( x = 1 ) ,\n g( ) ]"):
        assert calls_of(parse(text, "pythonic")) == [("a.b", {"x": 1}), ("g", {})]


def test_brackets_and_quotes_in_strings_are_data() -> None:
    assert calls_of(parse("[f(x=\"]), g('\", y='(')]", "pythonic")) == [
        ("f", {"x": "]), g('", "y": "("})
    ]


def test_what_is_no_list_of_calls_is_text() -> None:
    for text in (
        *("[1, 2]", "[x]", "[]", "[link](http://a.b)", "[f(x)]", "[f(x=y)]", "[f(x==1)]", "[f"),
        *("f(x=1)", "See [f(x=1)]", "[f(", "[f(x=", "[(x=1)]", "[f(=1)]", "[f (is prose)"),
    ):
        message = parse(text, "pythonic")
        assert message.content == text and not message.error


def test_a_call_that_has_begun_and_cannot_be_read_is_an_error() -> None:
    for text, kind in (
        ("[f(x=1, y=z)]", "invalid_tool_call"),
        ("[f(x=1, y=", "incomplete_tool_call"),
        ("[f(x='a", "incomplete_tool_call"),
        ("[f(x=[1, g()])]", "invalid_tool_call"),
        ("[f(x=1 y=2)]", "invalid_tool_call"),
    ):
        message = parse(text, "pythonic")
        assert message.error is not None and message.error.type == kind, text


def test_lines_of_calls() -> None:
    for between in ("\n", "\n\n", ", ", " "):
        text = f"<function_calls>f(x=null){between}g(y=[true])</function_calls>"
        assert calls_of(parse(text, "olmo3")) == [("f", {"x": None}), ("g", {"y": [True]})]
    assert calls_of(parse("<function_calls>[f(), g()]</function_calls>", "olmo3"))
