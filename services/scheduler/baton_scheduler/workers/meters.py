"""Moving averages of the latency and throughput of one worker, computed from event times."""

from __future__ import annotations

from dataclasses import dataclass, field

_WINDOW = 1.0
"""Length of the counting window in seconds."""
_IDLE = 0.01
"""A rate below this counts as zero."""


@dataclass(slots=True)
class RateMeter:
    """Events per second: mean of the rate in the last window and the rate before it."""

    rate: float = 0.0
    _count: int = 0
    _start: float | None = None

    def add(self, count: int) -> None:
        """Count events."""
        self._count += count

    def tick(self, now: float) -> None:
        """Advance time; the rate is updated at the end of a window."""
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


class ModelRates:
    """Events per second by model."""

    def __init__(self) -> None:
        self._meters: dict[str, RateMeter] = {}

    def add(self, model: str, count: int) -> None:
        """Count events of a model."""
        self._meters.setdefault(model, RateMeter()).add(count)

    def tick(self, now: float) -> None:
        """Advance time."""
        for meter in self._meters.values():
            meter.tick(now)

    def rate(self, model: str) -> float:
        """Rate of a model; of all together if `model` is empty."""
        return sum(m.rate for name, m in self._meters.items() if model in ("", name))


_KEPT = 0.9
"""Weight of the previous average when a value is added."""


@dataclass(slots=True)
class LatencyMeter:
    """Time to first token, time between tokens, and computed tokens per second."""

    ttft: float = 0.0
    """Seconds from arrival to first token, of sequences that started here; 0 before the first."""
    itl: float = 0.0
    """Seconds between two tokens of a sequence; 0 before the first measurement."""
    computed: RateMeter = field(default_factory=RateMeter)
    """Tokens run through the model per second, prompts included."""

    def first_token(self, seconds: float) -> None:
        """Add the time from arrival to first token of a sequence."""
        self.ttft = average(self.ttft, seconds)

    def step_done(self, seconds: float, rows: int, tokens: int) -> None:
        """Add the time between two consecutive results, in which `rows` sequences got `tokens`
        tokens."""
        if tokens:
            self.itl = average(self.itl, seconds * rows / tokens)


def average(before: float, latest: float) -> float:
    """Return the moving average after `latest`; 0 stands for no average yet."""
    return _KEPT * before + (1 - _KEPT) * latest if before else latest
