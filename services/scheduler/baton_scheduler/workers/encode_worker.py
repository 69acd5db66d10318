"""One encode worker as seen by the scheduler: its encodings in flight, and its speed."""

from __future__ import annotations

from dataclasses import dataclass, field

from baton.protocol import WorkerInfo
from baton_scheduler.workers.cost_model import LinearCostModel
from baton_scheduler.workers.meters import RateMeter, average

MOST_IN_FLIGHT = 2
"""Encodings sent to one worker: one runs while the next waits. The others stay in the scheduler,
which sends each to the first worker that is free."""


@dataclass(slots=True)
class EncodeWorker:
    """A worker that runs the encoder of media alone."""

    name: str
    epoch: int
    info: WorkerInfo
    draining: bool = False
    in_flight: dict[int, int] = field(default_factory=dict)
    """Number of an encoding -> its embeddings, in the order of sending."""
    waiting_since: float | None = None
    """Time since which a result is due; None if nothing is in flight."""
    num_encoded: int = 0
    step_seconds: float = 0.0
    """Moving average time of an encoding."""
    tokens: RateMeter = field(default_factory=RateMeter)
    """Embeddings per second."""
    encode_cost: LinearCostModel = field(default_factory=LinearCostModel)
    """Cost model of encodings, by embeddings."""

    @property
    def free(self) -> bool:
        """True if it takes another encoding."""
        return not self.draining and len(self.in_flight) < MOST_IN_FLIGHT

    @property
    def load(self) -> tuple[float, int, str]:
        """Sort key; lower is better for a new encoding."""
        return (self.backlog, len(self.in_flight), self.name)

    @property
    def backlog(self) -> float:
        """Estimated seconds to encode what is in flight."""
        return self.encode_cost.seconds(sum(self.in_flight.values()), len(self.in_flight))

    def begin(self, number: int, num_tokens: int, now: float) -> None:
        """Record that an encoding was sent."""
        self.in_flight[number] = num_tokens
        if self.waiting_since is None:
            self.waiting_since = now

    def end(self, number: int, seconds: float, now: float) -> None:
        """Record an answer; `seconds` is 0 if nothing was encoded for it."""
        num_tokens = self.in_flight.pop(number)
        self.waiting_since = now if self.in_flight else None
        self.num_encoded += seconds > 0
        if seconds > 0:
            self.tokens.add(num_tokens)
            self.encode_cost.add(num_tokens, seconds)
            self.step_seconds = average(self.step_seconds, seconds)
