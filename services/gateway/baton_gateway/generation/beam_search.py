"""Beam search over next-token log-probabilities, without I/O; see `baton_gateway.beam_runner`.

Follows `GenerationMixin._beam_search` of transformers: a score is the sum of the log-probabilities
divided by the output length, end token included, to the power of `length_penalty`. A beam ends only
if its end token ranks among the best `width` candidates of the step.
https://huggingface.co/docs/transformers/main_classes/text_generation
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from baton_gateway.generation.output import TokenLogprob
from baton_gateway.generation.request import BeamSearchOptions


@dataclass(frozen=True, slots=True)
class Beam:
    """One hypothesis."""

    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    """Per token."""
    total: float = 0.0
    """Sum of the log-probabilities."""
    score: float = -math.inf
    """Final score, once the hypothesis has ended."""
    reason: str = ""
    """Finish reason, "stop" or "length"; empty while it runs."""


class BeamSearch:
    """The beams of one prompt. Call `advance` until `finished`, then `best`."""

    def __init__(
        self, options: BeamSearchOptions, stop_ids: frozenset[int], max_tokens: int
    ) -> None:
        self._options, self._stop_ids, self._max_tokens = options, stop_ids, max_tokens
        self.running = [Beam()]
        self._ended: list[Beam] = []

    @property
    def alternatives(self) -> int:
        """Number of alternatives per beam that `advance` needs: enough for `width` running beams
        even if all stop ids are among them."""
        return alternatives(self._options.width, len(self._stop_ids))

    @property
    def finished(self) -> bool:
        """True when no running hypothesis can still become one of the best."""
        if not self.running or len(self._ended) < self._options.width:
            return not self.running
        if self._options.early_stopping is True:
            return True
        return self._best_attainable() <= self._ended[-1].score

    def advance(self, following: Sequence[TokenLogprob]) -> None:
        """Extend each running beam by the alternatives of its next token."""
        width, running, ended = self._options.width, [], []
        pairs = zip(self.running, following, strict=True)
        candidates = [candidate for beam, entry in pairs for candidate in _extended(beam, entry)]
        for place, beam in enumerate(_greatest(self.alternatives, candidates)):
            reason = self._reason(beam)
            if not reason:
                running.append(beam)
            elif place < width:
                ended.append(self._end(beam, reason))
        self.running = running[:width]
        self._ended = sorted((*self._ended, *ended), key=lambda beam: -beam.score)[:width]

    def best(self, count: int) -> list[Beam]:
        """Return the `count` best outputs in descending order; at most `width` exist."""
        return self._ended[:count]

    def _reason(self, beam: Beam) -> str:
        if beam.tokens[-1] in self._stop_ids:
            return "stop"
        return "length" if len(beam.tokens) >= self._max_tokens else ""

    def _end(self, beam: Beam, reason: str) -> Beam:
        score = beam.total / len(beam.tokens) ** self._options.length_penalty
        return Beam(beam.tokens, beam.logprobs, beam.total, score, reason)

    def _best_attainable(self) -> float:
        """Best attainable score of the running beams, as `early_stopping` defines it."""
        best, penalty = self.running[0], self._options.length_penalty
        never = self._options.early_stopping == "never" and penalty > 0
        return float(best.total / (self._max_tokens if never else len(best.tokens)) ** penalty)


def alternatives(width: int, stop_ids: int) -> int:
    """Return the number of candidates per step for `width` beams and `stop_ids` stop ids."""
    return max(2, 1 + stop_ids) * width


def _extended(beam: Beam, entry: TokenLogprob) -> Iterator[Beam]:
    for rank, (token, value) in enumerate(entry.top, start=1):
        described = TokenLogprob(token, value, rank, entry.top)
        yield Beam((*beam.tokens, token), (*beam.logprobs, described), beam.total + value)


def _greatest(count: int, beams: Sequence[Beam]) -> list[Beam]:
    """Return the best `count` beams in descending order; ties keep their order."""
    return heapq.nlargest(count, beams, key=lambda beam: beam.total)
