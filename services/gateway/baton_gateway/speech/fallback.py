"""Decides which outputs are regenerated at a higher temperature, and which are silence: Whisper's
method (Radford et al. 2022, arXiv:2212.04356, section 4.5)."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from baton_gateway.speech.ordered_text import without_times

_HIGHEST = 1.0
_SLACK = 1e-6


@dataclass(frozen=True, slots=True)
class FallbackRules:
    """Thresholds; None disables one."""

    compression_ratio: float | None = None
    """An output with a higher zlib compression ratio repeats itself."""
    logprob: float | None = None
    """An output with a lower mean log-probability is unreliable."""
    no_speech: float | None = None
    """An unreliable output is silence if the probability of no speech is higher."""
    increment: float = 0.2
    """Step between two temperatures."""

    def temperatures(self, first: float) -> Iterator[float]:
        """Temperatures after the first one."""
        count = int((_HIGHEST + _SLACK - first) / self.increment)
        return (min(_HIGHEST, first + self.increment * n) for n in range(1, count + 1))

    def silent(self, logprobs: Sequence[float], no_speech: float) -> bool:
        """Whether the audio is silence, whatever the output is."""
        quiet = self.no_speech is not None and no_speech > self.no_speech
        return quiet and (self.logprob is None or self._guessed(logprobs))

    def fails(self, text: str, logprobs: Sequence[float], no_speech: float) -> bool:
        """Whether an output must be regenerated.

        Args:
            logprobs: of its tokens, including the one that ends it.
            no_speech: the probability of no speech.
        """
        if self.logprob is not None and self.silent(logprobs, no_speech):
            return False
        ratio = self.compression_ratio
        repeats = ratio is not None and compression(without_times(text).strip()) > ratio
        return repeats or self._guessed(logprobs)

    def _guessed(self, logprobs: Sequence[float]) -> bool:
        if self.logprob is None or not logprobs:
            return False
        return sum(logprobs) / len(logprobs) < self.logprob


def compression(text: str) -> float:
    """Bytes of a text divided by those of its zlib compression."""
    data = text.encode()
    return len(data) / len(zlib.compress(data))
