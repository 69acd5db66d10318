"""Validation of messages."""

from __future__ import annotations

from typing import Any

import pytest

from baton.errors import InvalidRequest
from baton_gateway.schemas.chat_messages import MAX_MESSAGES, check_messages

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ({"role": "developer", "content": "x"}, {"role": "system", "content": "x"}),
        (
            {"role": "user", "content": "x", "name": "bob", "evil": 1},
            {"role": "user", "content": "x", "name": "bob"},
        ),
        (
            {"role": "user", "content": [{"type": "text", "text": "x", "evil": 1}]},
            {"role": "user", "content": [{"type": "text", "text": "x"}]},
        ),
        (
            {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
            {"role": "user", "content": [{"type": "text", "text": "x"}]},
        ),
        (
            {"role": "assistant", "content": "x", "reasoning_content": "y", "tool_calls": None},
            {"role": "assistant", "content": "x", "reasoning_content": "y"},
        ),
        (
            {"role": "assistant", "content": None, "refusal": "No."},
            {"role": "assistant", "content": "No."},
        ),
        ({"role": "user", "content": ""}, {"role": "user", "content": ""}),
        ({"role": "user", "content": "x", "name": "José.1"},) * 2,
    ],
)
def test_only_known_fields_pass(given: dict[str, Any], seen: dict[str, Any]) -> None:
    assert check_messages([given]) == [seen]


def test_calls_and_their_answers() -> None:
    second = CALL | {"id": "c2"}
    answers = [{"role": "tool", "content": "x", "tool_call_id": i} for i in ("c2", "c1")]
    turn = {"role": "assistant", "tool_calls": [CALL, second]}
    checked = check_messages([turn, *answers, {"role": "user", "content": "x"}])
    assert checked[0] == {"role": "assistant", "tool_calls": [CALL, second], "content": None}
    with pytest.raises(InvalidRequest) as caught:
        check_messages([turn, answers[0]])
    assert caught.value.param == "messages.[1].role" and caught.value.code is None
    with pytest.raises(InvalidRequest):
        check_messages([turn, *answers, answers[0]])


def test_answers_come_back_as_they_were() -> None:
    """Also those without text, and calls of names that no tool has."""
    for empty in ({}, {"content": None}, {"content": []}, {"content": "", "tool_calls": []}):
        [turn] = check_messages([{"role": "assistant", "reasoning": "y"} | empty])
        assert turn == {"role": "assistant", "content": "", "reasoning_content": "y"}
    call = CALL | {"function": {"name": "functions.f<1>", "arguments": "{}"}}
    given = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "c1"}
    for content in (None, []):
        checked = check_messages([given, result | {"content": content}])
        assert checked == [given, result | {"content": ""}]
    function = {"name": "f", "arguments": ""}
    turn = {"role": "assistant", "tool_calls": [CALL | {"function": function}]}
    checked = check_messages([turn, {"role": "tool", "content": "x", "tool_call_id": "c1"}])
    assert checked[0]["tool_calls"][0]["function"] == function | {"arguments": "{}"}


def test_most_messages() -> None:
    message = {"role": "user", "content": "x"}
    assert len(check_messages([message] * MAX_MESSAGES)) == MAX_MESSAGES
    with pytest.raises(InvalidRequest):
        check_messages([message] * (MAX_MESSAGES + 1))
