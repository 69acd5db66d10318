"""Events of a streamed transcript."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from baton_gateway.generation.logprobs import Vocabulary
from baton_gateway.generation.output import OutputDelta, Started, TokenLogprob
from baton_gateway.schemas.audio.speech_responses import (
    SpeechEvent,
    TextDelta,
    TextDone,
    TokenProbability,
)
from baton_gateway.speech.ordered_text import OrderedText
from baton_gateway.streaming.speech_usage import AudioCounts, SpeechUsage


def token_probabilities(
    entries: Iterable[TokenLogprob], vocabulary: Vocabulary
) -> list[TokenProbability]:
    """Return `logprobs` in the format of the audio API."""
    return [
        TokenProbability(
            vocabulary.text(entry.token), list(vocabulary.piece(entry.token)), entry.logprob
        )
        for entry in entries
    ]


class SpeechTranscript:
    """A `Transcript` whose choices are the chunks of a recording.

    Args:
        order: joins the outputs of the chunks.
        recording: sizes of the recording in its prompts.
        vocabulary: for log-probabilities; None if they were not requested.
    """

    def __init__(
        self, order: OrderedText, recording: AudioCounts, vocabulary: Vocabulary | None
    ) -> None:
        self._text, self._audio, self._vocabulary = order, recording, vocabulary
        self._logprobs = list[TokenProbability]()
        self._usage = SpeechUsage()

    def opening(self, started: Started) -> Iterable[bytes]:
        """Return nothing: there is no event before the first delta."""
        self._usage.add(started, self._audio)
        return ()

    def add(self, delta: OutputDelta) -> Iterable[bytes]:
        """Return an event with the next part of the text, if any."""
        self._usage.written += len(delta.tokens)
        part = self._text.add(delta)
        event = TextDelta(part.text)
        if self._vocabulary is not None:
            event.logprobs = token_probabilities(part.logprobs, self._vocabulary)
            self._logprobs += event.logprobs
        return (_encoded(event),) if part.text or part.logprobs else ()

    def closing(self) -> Iterable[bytes]:
        """Return the event with the complete text."""
        event = TextDone(self._text.text, self._usage.tokens)
        if self._vocabulary is not None:
            event.logprobs = self._logprobs
        return (_encoded(event),)


def _encoded(event: SpeechEvent) -> bytes:
    return msgspec.json.encode(event)
