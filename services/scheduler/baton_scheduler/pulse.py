"""What clients feel of one worker: moving averages, from times that come with events."""

from __future__ import annotations

from dataclasses import dataclass, field

from baton_scheduler.meter import Meter

_KEPT = 0.9
"""Weight of the average before, per value that is added."""


@dataclass(slots=True)
class Pulse:
    """Seconds to first tokens and between tokens, and tokens computed per second."""

    ttft: float = 0.0
    """Arrival to first token of sequences that began here; 0 before there was one."""
    interval: float = 0.0
    """Token to token of sequences that run here; 0 before there were two."""
    computed: Meter = field(default_factory=Meter)
    """Tokens run through the model, prompts included."""

    def began(self, seconds: float) -> None:
        """A sequence has its first token, so long after its arrival."""
        self.ttft = _average(self.ttft, seconds)

    def stepped(self, seconds: float, rows: int, tokens: int) -> None:
        """Between two results that follow each other `rows` sequences got `tokens` tokens."""
        if tokens:
            self.interval = _average(self.interval, seconds * rows / tokens)


def _average(before: float, latest: float) -> float:
    return _KEPT * before + (1 - _KEPT) * latest if before else latest
