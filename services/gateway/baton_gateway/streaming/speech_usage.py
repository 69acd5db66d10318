"""Token counts of a transcript."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from baton_gateway.generation.output import Started
from baton_gateway.schemas.audio.speech_responses import InputDetails, TokenUsage


class AudioCounts(Protocol):
    """Sizes of a recording in its prompts."""

    @property
    def num_states(self) -> int:
        """Encoder states that its prompts attend to, in addition to the prompt tokens."""

    @property
    def num_tokens(self) -> int:
        """Placeholder tokens in its prompts."""


@dataclass(slots=True)
class SpeechUsage:
    """Counts the tokens of one or several parts of a recording."""

    written: int = 0
    """Tokens of the outputs."""
    _input: int = 0
    _audio: int = 0

    def add(self, started: Started, recording: AudioCounts) -> None:
        """Count the prompts of a part."""
        self._input += recording.num_states + sum(map(len, started.prompts))
        # A model represents audio either by encoder states or by tokens.
        self._audio += recording.num_states or recording.num_tokens

    @property
    def tokens(self) -> TokenUsage:
        """The sums."""
        details = InputDetails(self._audio, self._input - self._audio)
        return TokenUsage(self._input, self.written, self._input + self.written, details)
