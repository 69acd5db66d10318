"""Messages and the events of their streams. An event's type is its first field.

https://docs.anthropic.com/en/api/messages-streaming
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    """Text for the reader of the answer."""

    text: str
    citations: None = None


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking"):
    """The model's thinking."""

    thinking: str
    signature: str


class DirectCaller(msgspec.Struct, frozen=True, tag_field="type", tag="direct"):
    """The model itself made the call."""


class ToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use"):
    """A tool call."""

    id: str
    name: str
    input: dict[str, Any]
    caller: DirectCaller = DirectCaller()


ContentBlock = TextBlock | ThinkingBlock | ToolUseBlock


class ThinkingTokens(msgspec.Struct):
    """`usage.output_tokens_details`"""

    thinking_tokens: int


class MessageUsage(msgspec.Struct):
    """Token counts. The prompt is `input_tokens` plus the tokens from the prefix cache."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    output_tokens_details: ThinkingTokens
    cache_creation_input_tokens: int = 0
    cache_creation: None = None
    server_tool_use: None = None
    service_tier: Literal["standard"] = "standard"
    inference_geo: None = None


class Message(msgspec.Struct, kw_only=True):
    """Response of POST /v1/messages."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[ContentBlock]
    stop_reason: str | None
    stop_sequence: str | None
    stop_details: None = None
    usage: MessageUsage
    container: None = None


class InputTokens(msgspec.Struct):
    """Response of POST /v1/messages/count_tokens."""

    input_tokens: int


class TextDelta(msgspec.Struct, tag_field="type", tag="text_delta"):
    """The next part of a text."""

    text: str


class ThinkingDelta(msgspec.Struct, tag_field="type", tag="thinking_delta"):
    """The next part of the thinking."""

    thinking: str


class SignatureDelta(msgspec.Struct, tag_field="type", tag="signature_delta"):
    """The signature of the thinking; the last delta of its block."""

    signature: str


class InputJsonDelta(msgspec.Struct, tag_field="type", tag="input_json_delta"):
    """The next part of the text of a call's input."""

    partial_json: str


BlockDelta = TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta


class MessageStart(msgspec.Struct, tag_field="type", tag="message_start"):
    """First event."""

    message: Message


class BlockStart(msgspec.Struct, tag_field="type", tag="content_block_start"):
    """A block opens; the previous one is closed."""

    index: int
    content_block: ContentBlock


class BlockEvent(msgspec.Struct, tag_field="type", tag="content_block_delta"):
    """The next part of the open block."""

    index: int
    delta: BlockDelta


class BlockStop(msgspec.Struct, tag_field="type", tag="content_block_stop"):
    """The open block closes."""

    index: int


class StopFields(msgspec.Struct):
    """`delta` of the second to last event."""

    stop_reason: str
    stop_sequence: str | None
    stop_details: None = None
    container: None = None


class MessageDelta(msgspec.Struct, tag_field="type", tag="message_delta"):
    """The reason for the message's end, and its final token counts."""

    delta: StopFields
    usage: MessageUsage


class MessageStop(msgspec.Struct, tag_field="type", tag="message_stop"):
    """Last event."""


MessageEvent = MessageStart | BlockStart | BlockEvent | BlockStop | MessageDelta | MessageStop
"""One event of a stream."""
