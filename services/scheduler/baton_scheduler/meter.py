"""A smoothed rate, from counts and a clock that the caller reads."""

from __future__ import annotations

from dataclasses import dataclass

_WINDOW = 1.0
"""Seconds over which events are counted before the rate moves."""
_IDLE = 0.01
"""A rate below this is nothing."""


@dataclass(slots=True)
class Meter:
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
