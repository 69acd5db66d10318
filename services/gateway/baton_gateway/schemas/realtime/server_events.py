"""Events that the gateway sends over /v1/realtime.

https://platform.openai.com/docs/api-reference/realtime-server-events
"""

from __future__ import annotations

import uuid
from typing import Literal

import msgspec

from baton_gateway.schemas.audio.speech_responses import TokenProbability, TokenUsage


def _event_id() -> str:
    return f"event_{uuid.uuid4().hex}"


class ServerEvent(msgspec.Struct, kw_only=True, tag_field="type"):
    """Fields of all events."""

    event_id: str = msgspec.field(default_factory=_event_id)


class Format(msgspec.Struct):
    """session.audio.input.format"""

    rate: int
    type: Literal["audio/pcm"] = "audio/pcm"


class Transcribing(msgspec.Struct):
    """session.audio.input.transcription"""

    model: str | None
    language: str | None
    prompt: str


class ServerVad(msgspec.Struct, tag_field="type", tag="server_vad"):
    """session.audio.input.turn_detection"""

    threshold: float
    prefix_padding_ms: int
    silence_duration_ms: int


class Input(msgspec.Struct):
    """session.audio.input"""

    format: Format
    transcription: Transcribing
    turn_detection: ServerVad | None = None
    noise_reduction: None = None


class Audio(msgspec.Struct):
    """session.audio"""

    input: Input


class Session(msgspec.Struct):
    """session"""

    id: str
    expires_at: int
    """Seconds since the epoch."""
    audio: Audio
    include: list[str] | None = None
    object: Literal["realtime.transcription_session"] = "realtime.transcription_session"
    type: Literal["transcription"] = "transcription"


class SessionCreated(ServerEvent, tag="session.created"):
    """The first event. Its `id` and `created` are vLLM's."""

    id: str
    created: int
    session: Session


class SessionUpdated(ServerEvent, tag="session.updated"):
    """Answers session.update."""

    session: Session


class SpeechStarted(ServerEvent, tag="input_audio_buffer.speech_started"):
    """Speech begins, and with it an item."""

    audio_start_ms: int
    """Start of the item in the audio of the session, in milliseconds."""
    item_id: str


class SpeechStopped(ServerEvent, tag="input_audio_buffer.speech_stopped"):
    """Speech has stopped; the item is committed."""

    audio_end_ms: int
    """End of the item in the audio of the session, in milliseconds."""
    item_id: str


class BufferCommitted(ServerEvent, tag="input_audio_buffer.committed"):
    """The audio so far is an item, whose text follows."""

    item_id: str
    previous_item_id: str | None


class BufferCleared(ServerEvent, tag="input_audio_buffer.cleared"):
    """The audio so far is discarded."""


class ItemDelta(ServerEvent, tag="conversation.item.input_audio_transcription.delta"):
    """The next part of an item's text."""

    item_id: str
    delta: str
    content_index: int = 0
    logprobs: list[TokenProbability] | None = None


class ItemCompleted(ServerEvent, tag="conversation.item.input_audio_transcription.completed"):
    """The complete text of an item."""

    item_id: str
    transcript: str
    usage: TokenUsage
    content_index: int = 0
    logprobs: list[TokenProbability] | None = None


class EventError(msgspec.Struct):
    """`error` of an event."""

    type: str
    code: str | None
    message: str
    param: str | None
    event_id: str | None = None
    """Id of the client's event that is invalid."""


class ItemFailed(ServerEvent, tag="conversation.item.input_audio_transcription.failed"):
    """The transcription of an item has failed."""

    item_id: str
    error: EventError
    content_index: int = 0


class ErrorEvent(ServerEvent, tag="error"):
    """An error. The session continues."""

    error: EventError


class PlainUsage(msgspec.Struct):
    """`usage` in vLLM's format."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class TextDelta(ServerEvent, tag="transcription.delta"):
    """The next part of the text (vLLM)."""

    delta: str


class TextDone(ServerEvent, tag="transcription.done"):
    """The complete text since the last one (vLLM)."""

    text: str
    usage: PlainUsage
