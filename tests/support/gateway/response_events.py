"""Reads the event streams of the Responses API, and checks their grammar."""

from __future__ import annotations

from typing import Any

from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

Event = dict[str, Any]

_EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
_DELTAS = {
    "response.output_text": "text",
    "response.reasoning_text": "text",
    "response.function_call_arguments": "arguments",
    "response.custom_tool_call_input": "input",
}
"""Prefix of a delta and of what ends it -> the field that has the whole."""


def response_of(events: list[Event], first: int = 0) -> Event:
    """The response that a whole stream makes.

    Asserts that OpenAI's own types take every event, that events are numbered, that items open and
    close in order, one at a time, and that their parts are what the response has in the end.
    """
    for event in events:
        _EVENTS.validate_python(event)
    assert [event["sequence_number"] for event in events] == list(range(first, first + len(events)))
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert all(event["response"]["output"] == [] for event in events[:2])
    response: Event = events[-1]["response"]
    assert kinds[-1] == f"response.{response['status']}" and response["id"]
    items = _items(events[2:-1], cut=response["status"] == "failed")
    if response["status"] != "failed":
        assert items == response["output"]
        assert {event["response"]["id"] for event in events[:2]} == {response["id"]}
    Response.model_validate(response)
    return response


def _items(events: list[Event], *, cut: bool) -> list[Event]:
    """The items of a stream; the last may be open where the stream was `cut` off."""
    items: list[Event] = []
    part: Event | None = None
    text, is_open = "", False
    for event in events:
        kind, _, end = event["type"].rpartition(".")
        assert event["output_index"] == len(items) - (event["type"] != _ADDED)
        if event["type"] == _ADDED:
            assert not is_open and event["item"]["status"] == "in_progress"
            items.append(event["item"])
            text, is_open = "", True
        elif event["type"] == _DONE:
            assert is_open and event["item"]["id"] == items[-1]["id"]
            if part is not None:
                assert event["item"]["content"] == [part]
            items[-1], part, is_open = event["item"], None, False
        elif kind == "response.content_part":
            assert is_open and (part is None) == (end == "added")
            part = event["part"]
            assert part["text"] == text
        else:
            assert is_open and event["item_id"] == items[-1]["id"]
            if end == "delta":
                text += event["delta"]
            else:
                assert event[_DELTAS[kind]] == text or (text, kind) == ("", _NO_ARGUMENTS)
    assert cut or not is_open
    return items


_ADDED, _DONE = "response.output_item.added", "response.output_item.done"
_NO_ARGUMENTS = "response.function_call_arguments"
"""A whole call without arguments has an empty object."""
