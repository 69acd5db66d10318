"""Items as the messages of a chat."""

from __future__ import annotations

from typing import Any

import pytest

from baton.errors import InvalidRequest
from baton_gateway.schemas.responses.input_items import Conversation, input_items

CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a":1}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "2"}
THOUGHT = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "h"}]}


def messages(value: Any, instructions: str | None = None) -> list[dict[str, Any]]:
    conversation = Conversation(instructions)
    conversation.add(input_items(value))
    return conversation.finish()


def said(role: str, *texts: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"role": role, "content": [{"type": kind, "text": text} for text in texts]}


def test_every_item_has_its_place_in_the_chat() -> None:
    custom = {"type": "custom_tool_call", "call_id": "c2", "name": "g", "input": 'a"b'}
    result = {"type": "custom_tool_call_output", "call_id": "c2", "output": [
        {"type": "input_text", "text": "3"}]}  # fmt: skip
    items = [
        said("developer", "d"),
        said("user", "a", "b"),
        THOUGHT | {"id": "rs_1", "status": "completed"},
        said("assistant", "c") | {"type": "message", "id": "msg_1", "status": "completed"},
        CALL,
        custom,
        OUTPUT,
        result,
        said("user", "e"),
    ]
    functions = [
        {"name": "f", "arguments": '{"a":1}'},
        {"name": "g", "arguments": '{"input":"a\\"b"}'},
    ]
    assert messages(items, "i") == [
        {"role": "system", "content": "i\n\nd"},
        {"role": "user", "content": "ab"},
        {
            "role": "assistant",
            "content": "c",
            "reasoning_content": "h",
            "tool_calls": [
                {"id": f"c{n}", "type": "function", "function": function}
                for n, function in enumerate(functions, 1)
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
        {"role": "tool", "tool_call_id": "c2", "content": "3"},
        {"role": "user", "content": "e"},
    ]


def test_turns_of_the_assistant_are_told_apart() -> None:
    turns = messages([said("user", "q"), said("assistant", "a"), said("assistant", "b"), THOUGHT])
    assert [m["content"] for m in turns] == ["q", "a", "b"], "thinking before nothing is left out"
    turns = messages([CALL, said("assistant", "a"), OUTPUT, THOUGHT, CALL, OUTPUT])
    assert [m["role"] for m in turns] == ["assistant", "tool", "assistant", "tool"]
    assert (turns[0]["content"], turns[2]["reasoning_content"]) == ("a", "h")
    encrypted = {"type": "reasoning", "summary": [], "content": None}
    assert messages([encrypted, said("user", "q")]) == [{"role": "user", "content": "q"}]


def test_a_call_that_was_cut_off_is_left_out() -> None:
    cut = CALL | {"status": "incomplete", "arguments": '{"a'}
    assert messages([said("user", "q"), cut]) == [{"role": "user", "content": "q"}]


def test_calls_of_built_in_tools_that_the_client_ran_are_calls_with_outputs() -> None:
    items = [
        {"type": "shell_call", "call_id": "c1", "action": {"commands": ["ls"]}},
        {"type": "apply_patch_call", "call_id": "c2", "operation": {"type": "delete_file"}},
        {"type": "local_shell_call", "id": "i", "call_id": "c3", "action": {"command": ["ls"]}},
        {"type": "shell_call_output", "call_id": "c1", "output": [{"stdout": "a"}]},
        {"type": "apply_patch_call_output", "call_id": "c2", "status": "failed"},
        {"type": "local_shell_call_output", "id": "c3", "output": "b"},
    ]
    turn, *results = messages(items)
    assert [tuple(call["function"].values()) for call in turn["tool_calls"]] == [
        ("shell", '{"commands":["ls"]}'),
        ("apply_patch", '{"type":"delete_file"}'),
        ("local_shell", '{"command":["ls"]}'),
    ]
    assert [(result["tool_call_id"], result["content"]) for result in results] == [
        ("c1", '{"output":[{"stdout":"a"}]}'),
        ("c2", '{"status":"failed"}'),
        ("c3", "b"),
    ]


def test_a_part_of_a_conversation_may_answer_another() -> None:
    conversation = Conversation()
    conversation.add(input_items([OUTPUT]), partial=True)
    with pytest.raises(InvalidRequest):
        conversation.add(input_items([OUTPUT]))


@pytest.mark.parametrize(
    ("value", "param"),
    [
        (5, "input"),
        ([], "input"),
        (["x"], "input[0]"),
        ([{"content": "x"}], "input[0].type"),
        ([{"role": "tool", "content": "x"}], "input[0].role"),
        ([{"role": "user"}], "input[0].content"),
        ([{"role": "user", "content": [{"type": "input_image"}]}], "input[0].content[0].image_url"),
        ([{"role": "system", "content": [{"type": "input_image"}]}], "input[0].content[0].type"),
        (
            [{"role": "user", "content": [{"type": "input_audio"}]}],
            "input[0].content[0].input_audio",
        ),
        ([{"role": "system", "content": [{"type": "input_audio"}]}], "input[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "input_text"}]}], "input[0].content[0].text"),
        ([{"type": "item_reference"}], "input[0].id"),
        ([{"type": "item_reference", "id": "x"}], "input[0].type"),
        ([{"type": "computer_call"}], "input[0].type"),
        ([{"type": "mcp_call"}], "input[0].name"),
        ([CALL], "input[0]"),
        ([OUTPUT], "input[0]"),
        ([CALL | {"arguments": {}}], "input[0].arguments"),
    ],
)
def test_errors_name_the_field(value: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        messages(value)
    assert caught.value.param == param


def test_audio_stands_among_the_texts_and_images() -> None:
    sound = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    image = {"type": "input_image", "image_url": "data:,"}
    parts = [{"type": "input_text", "text": "a"}, sound, image, sound]
    [message] = messages([{"role": "user", "content": parts}])
    kinds = [part["type"] for part in message["content"]]
    assert kinds == ["text", "input_audio", "image_url", "input_audio"]
    assert message["content"][1] == sound
