"""Content blocks as the messages of a chat."""

from __future__ import annotations

from typing import Any

import pytest

from baton.errors import InvalidRequest
from baton_gateway.schemas.anthropic.blocks import chat_messages
from baton_gateway.schemas.anthropic.signature import sign

USER = {"role": "user", "content": "hi"}


def text(content: str) -> dict[str, str]:
    return {"type": "text", "text": content}


def test_a_system_turn_may_stand_anywhere() -> None:
    turns = [USER, {"role": "system", "content": [text("a"), text("b")]}, USER]
    [_, said, _] = chat_messages(None, turns)
    assert said == chat_messages([text("a"), text("b")], [USER])[0]
    empty = {"role": "assistant", "content": []}
    assert chat_messages([], [USER, empty]) == [USER, {"role": "assistant", "content": ""}]
    with pytest.raises(InvalidRequest, match=r"'user', 'assistant', 'system'"):
        chat_messages(None, [{"role": "tool", "content": "x"}])


def test_every_block_has_its_place_in_the_chat() -> None:
    thinking = {"type": "thinking", "thinking": "hm", "signature": sign("hm")}
    call = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": [1]}}
    results = [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": [text("no")], "is_error": True}
    ]
    turns = [
        {"role": "user", "content": [text("a") | {"cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": [thinking, text("b"), text("c"), call]},
        {"role": "user", "content": [*results, text("d"), text("e")]},
    ]
    function = {"name": "f", "arguments": '{"a":[1]}'}
    assert chat_messages("s", turns) == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [text("a")]},
        {
            "role": "assistant",
            "content": "bc",
            "reasoning_content": "hm",
            "tool_calls": [{"id": "toolu_1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "toolu_1", "content": [text("Error: "), text("no")]},
        {"role": "user", "content": [text("d"), text("e")]},
    ]


@pytest.mark.parametrize(
    ("turn", "param"),
    [
        ({"role": "tool", "content": "x"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": []}, "messages[0].content"),
        ({"role": "user", "content": ["x"]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "image"}]}, "messages[0].content[0].source"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        (
            {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]},
            "messages[0].content[0].type",
        ),
        (
            {"role": "assistant", "content": [{"type": "tool_use", "input": "x"}]},
            "messages[0].content[0].input",
        ),
        ({"role": "user", "content": [{"type": "tool_use"}]}, "messages[0].content[0].type"),
    ],
)
def test_errors_name_the_field(turn: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat_messages(None, [turn])
    assert caught.value.param == param


def test_what_is_refused_has_advice() -> None:
    block = {"type": "redacted_thinking", "data": "x"}
    with pytest.raises(InvalidRequest, match="never redacts"):
        chat_messages(None, [USER, {"role": "assistant", "content": [block]}])
