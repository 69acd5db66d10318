"""Events about a transcript in the client's API: OpenAI's, with item ids, or vLLM's, without."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from baton.errors import BatonError
from baton_gateway.schemas.audio.speech_responses import TokenProbability, TokenUsage
from baton_gateway.schemas.realtime.server_events import (
    BufferCommitted,
    ErrorEvent,
    EventError,
    ItemCompleted,
    ItemDelta,
    ItemFailed,
    PlainUsage,
    ServerEvent,
    TextDelta,
    TextDone,
)


@dataclass(frozen=True, slots=True)
class SpokenText:
    """A text, or a part of it."""

    text: str
    logprobs: list[TokenProbability] | None = None
    """Log-probabilities of its tokens; None if they were not requested."""


class TranscriptEvents(Protocol):
    """Creates the events about one item."""

    begins_by_commit: bool
    """Whether a commit before any audio begins an item, as with vLLM's clients."""

    def committed(self, item: str, previous: str | None) -> ServerEvent | None:
        """The event for a commit, if there is one."""

    def delta(self, item: str, part: SpokenText) -> ServerEvent:
        """The event for the next part of a text."""

    def done(self, item: str, text: SpokenText, usage: TokenUsage) -> ServerEvent:
        """The event for a complete text."""

    def failed(self, item: str, error: BatonError) -> ServerEvent:
        """The event for a failed item."""


class ItemEvents:
    """OpenAI's events."""

    begins_by_commit = False

    def committed(self, item: str, previous: str | None) -> ServerEvent | None:
        """input_audio_buffer.committed"""
        return BufferCommitted(item_id=item, previous_item_id=previous)

    def delta(self, item: str, part: SpokenText) -> ServerEvent:
        """conversation.item.input_audio_transcription.delta"""
        return ItemDelta(item_id=item, delta=part.text, logprobs=part.logprobs)

    def done(self, item: str, text: SpokenText, usage: TokenUsage) -> ServerEvent:
        """conversation.item.input_audio_transcription.completed"""
        return ItemCompleted(
            item_id=item, transcript=text.text, usage=usage, logprobs=text.logprobs
        )

    def failed(self, item: str, error: BatonError) -> ServerEvent:
        """conversation.item.input_audio_transcription.failed"""
        return ItemFailed(item_id=item, error=event_error(error))


class PlainEvents:
    """vLLM's events."""

    begins_by_commit = True

    def committed(self, item: str, previous: str | None) -> ServerEvent | None:
        """vLLM has no such event."""
        return None

    def delta(self, item: str, part: SpokenText) -> ServerEvent:
        """transcription.delta"""
        return TextDelta(delta=part.text)

    def done(self, item: str, text: SpokenText, usage: TokenUsage) -> ServerEvent:
        """transcription.done"""
        counts = PlainUsage(usage.input_tokens, usage.output_tokens, usage.total_tokens)
        return TextDone(text=text.text, usage=counts)

    def failed(self, item: str, error: BatonError) -> ServerEvent:
        """error"""
        return ErrorEvent(error=event_error(error))


def event_error(error: BatonError, event_id: str | None = None) -> EventError:
    """Return the body of an error event. Text that is not valid Unicode is escaped."""
    message = error.message.encode("utf-8", "backslashreplace").decode()
    return EventError(error.type, error.code, message, error.param, event_id)
