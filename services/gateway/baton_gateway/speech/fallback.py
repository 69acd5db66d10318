"""Which outputs are written again at a higher temperature, and which are silence: the recipe of
Whisper (Radford et al. 2022, arXiv:2212.04356, section 4.5)."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from baton_gateway.speech.ordered_text import without_times

_HIGHEST = 1.0
_SLACK = 1e-6


@dataclass(frozen=True, slots=True)
class FallbackRules:
    """Thresholds; None for one that is not looked at."""

    compression_ratio: float | None = None
    """An output that zlib makes smaller by more than this repeats itself."""
    logprob: float | None = None
    """An output whose tokens have a lower mean log-probability is a guess."""
    no_speech: float | None = None
    """A guess is silence where the probability of no speech is above this."""
    increment: float = 0.2
    """Between two temperatures."""

    def temperatures(self, first: float) -> Iterator[float]:
        """Those that follow the first one."""
        count = int((_HIGHEST + _SLACK - first) / self.increment)
        return (min(_HIGHEST, first + self.increment * n) for n in range(1, count + 1))

    def silent(self, logprobs: Sequence[float], no_speech: float) -> bool:
        """Whether there is silence, whatever is written."""
        quiet = self.no_speech is not None and no_speech > self.no_speech
        return quiet and (self.logprob is None or self._guessed(logprobs))

    def fails(self, text: str, logprobs: Sequence[float], no_speech: float) -> bool:
        """Whether an output is to be written again.

        Args:
            logprobs: of its tokens, with the one that ends it.
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
    """Bytes of a text to those that zlib makes of it."""
    data = text.encode()
    return len(data) / len(zlib.compress(data))
