"""Reads the event streams of the Messages API, and checks their grammar."""

from __future__ import annotations

import json
from typing import Any

Event = dict[str, Any]

_FIELDS = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}


def named_events(text: str) -> list[Event]:
    """The events of a stream, each named by its type."""
    found = []
    for frame in text.strip().split("\n\n"):
        name, data = frame.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def message_of(events: list[Event]) -> Event:
    """The message that a whole stream makes.

    Asserts that blocks open and close in order, one at a time, between the two ends of the message.
    """
    assert [events[0]["type"], events[-2]["type"], events[-1]["type"]] == [
        "message_start",
        "message_delta",
        "message_stop",
    ]
    message: Event = events[0]["message"]
    blocks, inputs, is_open = message["content"], [""], False
    assert blocks == [] and message["stop_reason"] is None
    for event in events[1:-2]:
        match event["type"]:
            case "content_block_start":
                assert not is_open and event["index"] == len(blocks)
                blocks.append(event["content_block"])
                inputs.append("")
            case "content_block_delta":
                assert is_open and event["index"] == len(blocks) - 1
                inputs[-1] += _extend(blocks[-1], event["delta"])
            case "content_block_stop":
                assert is_open and event["index"] == len(blocks) - 1
                if blocks[-1]["type"] == "tool_use":
                    blocks[-1]["input"] = json.loads(inputs[-1] or "{}")
            case other:
                raise AssertionError(other)
        is_open = event["type"] != "content_block_stop"
    assert not is_open
    return message | events[-2]["delta"] | {"usage": events[-2]["usage"]}


def _extend(block: Event, delta: Event) -> str:
    """Add a delta to its block; parts of a call's input are returned instead."""
    if delta["type"] == "input_json_delta":
        assert block["type"] == "tool_use"
        return str(delta["partial_json"])
    field = _FIELDS[delta["type"]]
    block[field] += delta[field]
    return ""
