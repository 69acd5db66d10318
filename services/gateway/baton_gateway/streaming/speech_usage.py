"""Tokens of a transcript."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from baton_gateway.generation.output import Started
from baton_gateway.schemas.audio.speech_responses import InputDetails, TokenUsage


class AudioCounts(Protocol):
    """Sizes of a recording in its prompts."""

    @property
    def num_states(self) -> int:
        """Vectors that the encoder makes of it, beside the prompts."""

    @property
    def num_tokens(self) -> int:
        """Tokens that stand for it in the prompts."""


@dataclass(slots=True)
class SpeechUsage:
    """Counts what one or several parts of a recording take."""

    written: int = 0
    """Tokens of the outputs."""
    _given: int = 0
    _audio: int = 0

    def add(self, started: Started, recording: AudioCounts) -> None:
        """Count the prompts of a part."""
        self._given += recording.num_states + sum(map(len, started.prompts))
        # The states of one model are the tokens of another.
        self._audio += recording.num_states or recording.num_tokens

    @property
    def tokens(self) -> TokenUsage:
        """The sums."""
        details = InputDetails(self._audio, self._given - self._audio)
        return TokenUsage(self._given, self.written, self._given + self.written, details)
