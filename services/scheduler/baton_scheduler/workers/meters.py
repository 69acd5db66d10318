"""What clients feel of one worker: moving averages, from times that come with events."""

from __future__ import annotations

from dataclasses import dataclass, field

_WINDOW = 1.0
"""Seconds over which events are counted before the rate moves."""
_IDLE = 0.01
"""A rate below this is nothing."""


@dataclass(slots=True)
class RateMeter:
    """Events per second: the mean of the last window's rate and the rate before it."""

    rate: float = 0.0
    _count: int = 0
    _start: float | None = None

    def add(self, count: int) -> None:
        """Note events."""
        self._count += count

    def tick(self, now: float) -> None:
        """Let time pass; the rate moves when a window is full."""
        if self._start is None:
            self._start = now
        elapsed = now - self._start
        if elapsed < _WINDOW:
            return
        latest = self._count / elapsed
        self.rate = latest if self.rate == 0.0 else (self.rate + latest) / 2
        if self.rate < _IDLE:
            self.rate = 0.0
        self._count, self._start = 0, now


_KEPT = 0.9
"""Weight of the average before, per value that is added."""


@dataclass(slots=True)
class LatencyMeter:
    """Seconds to first tokens and between tokens, and tokens computed per second."""

    ttft: float = 0.0
    """Arrival to first token of sequences that began here; 0 before there was one."""
    itl: float = 0.0
    """Token to token of sequences that run here; 0 before there were two."""
    computed: RateMeter = field(default_factory=RateMeter)
    """Tokens run through the model, prompts included."""

    def first_token(self, seconds: float) -> None:
        """A sequence has its first token, so long after its arrival."""
        self.ttft = _average(self.ttft, seconds)

    def step_done(self, seconds: float, rows: int, tokens: int) -> None:
        """Between two results that follow each other `rows` sequences got `tokens` tokens."""
        if tokens:
            self.itl = _average(self.itl, seconds * rows / tokens)


def _average(before: float, latest: float) -> float:
    return _KEPT * before + (1 - _KEPT) * latest if before else latest
