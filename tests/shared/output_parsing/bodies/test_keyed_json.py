from __future__ import annotations

from tests.support.model_outputs import calls_of, parse


def call(inside: str) -> str:
    return f"<|tools_prefix|>{inside}<|tools_suffix|>"


def test_the_key_is_the_function() -> None:
    text = call('[{"f": {"a": {"b": [1]}}}, { "g" : {} }]')
    assert calls_of(parse(text, "apertus")) == [("f", {"a": {"b": [1]}}), ("g", {})]


def test_what_is_no_call_is_text() -> None:
    for text in ("[]", '[{"two words": {}}]', '[{"f": 3}]', '{"f": {}}', '["f"]'):
        assert parse(call(text), "apertus").content == call(text)


def test_a_call_that_is_cut_off_is_an_error() -> None:
    error = parse('<|tools_prefix|>[{"f": {"a": 1', "apertus").error
    assert error is not None and error.type == "incomplete_tool_call"
