"""Events of the Messages API."""

from __future__ import annotations

import msgspec

from baton_gateway.schemas.anthropic.response import (
    BlockEvent,
    BlockStart,
    BlockStop,
    MessageStop,
    TextBlock,
    TextDelta,
)


def test_the_type_is_the_first_field() -> None:
    """The frames of a stream take the name of an event from there."""
    encode = msgspec.json.encode
    start = b'{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""'
    assert encode(BlockStart(0, TextBlock(""))).startswith(start)
    delta = b'{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"a"}}'
    assert encode(BlockEvent(1, TextDelta("a"))) == delta
    assert encode(BlockStop(2)) == b'{"type":"content_block_stop","index":2}'
    assert encode(MessageStop()) == b'{"type":"message_stop"}'
