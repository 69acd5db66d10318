from __future__ import annotations

import re

from tests.support.model_outputs import calls_of, parse


def test_ids_have_nine_letters_and_digits() -> None:
    for text, expected in (
        ("[TOOL_CALLS]f[ARGS]{}", None),
        ("[TOOL_CALLS]f[CALL_ID]abc123XYZ[ARGS]{}", "abc123XYZ"),
        ("[TOOL_CALLS]f[CALL_ID]abc123XYZ{}", "abc123XYZ"),
        ("[TOOL_CALLS]f[CALL_ID]short[ARGS]{}", None),
        ('[TOOL_CALLS][{"name": "f", "id": "abc123XYZ", "arguments": {}}]', "abc123XYZ"),
        ('[TOOL_CALLS] [{"name": "f", "arguments": {}, "id": "abc123XYZ"}]', None),
    ):
        message = parse(text, "mistral")
        assert calls_of(message) == [("f", {})]
        assert re.fullmatch("[a-zA-Z0-9]{9}", message.tool_calls[0].id)
        assert expected in (None, message.tool_calls[0].id)


def test_delimiters_in_arguments_are_data() -> None:
    message = parse('[TOOL_CALLS]f[ARGS]{"a": "[TOOL_CALLS]g[ARGS]{}"}', "mistral")
    assert calls_of(message) == [("f", {"a": "[TOOL_CALLS]g[ARGS]{}"})]


def test_an_opener_without_a_call_is_text() -> None:
    for text in ("[TOOL_CALLS]", "[TOOL_CALLS] and so on", "[TOOL_CALLS]f[ARGS]", "[TOOL_CALLS][]"):
        assert parse(text, "mistral").content == text
