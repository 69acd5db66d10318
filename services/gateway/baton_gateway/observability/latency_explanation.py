"""Response of GET /v1/requests/{id}/explain."""

from __future__ import annotations

from typing import Self

import msgspec

from baton.protocol import PhaseTimes
from baton_gateway.observability.latency_causes import PHASES, SERVICES


class TimelinePart(msgspec.Struct, frozen=True):
    """One cause and its time."""

    cause: str
    service: str
    ms: float
    share: float
    """Fraction of the wall time."""

    @classmethod
    def of(cls, cause: str, seconds: float, wall: float) -> Self:
        """Create the part of a cause that took `seconds` of `wall`."""
        share = round(seconds / wall, 4) if wall else 0.0
        return cls(cause, SERVICES[cause], milliseconds(seconds), share)


class WeightSpan(msgspec.Struct, frozen=True):
    """A range of output tokens generated with the same weights."""

    first_token: int
    """Index of the first one in the output."""
    weight_version: str


class ChoiceTimeline(msgspec.Struct, frozen=True):
    """Scheduler times of one choice, in milliseconds from its arrival to its end."""

    choice: int
    queue_ms: float
    prefill_ms: float
    handover_ms: float
    decode_ms: float
    preempted_ms: float
    worker_loss_ms: float
    preemptions: int
    worker_losses: int
    handovers: int
    shared_with: float
    """Mean number of other rows in the steps of its workers."""
    worker: str
    """Last worker that ran the choice; empty if none did."""
    draft_tokens: int
    """Draft tokens that were verified."""
    accepted_tokens: int
    """Accepted draft tokens: each has saved a step."""
    weight_versions: list[WeightSpan]
    """Versions of the weights that generated its output, in order."""

    @classmethod
    def of(cls, choice: int, times: PhaseTimes) -> Self:
        """Convert the scheduler's phase times of a choice."""
        phases = {
            f"{cause}_ms": milliseconds(getattr(times, field)) for cause, field in PHASES.items()
        }
        return cls(
            choice=choice,
            preemptions=times.preemptions,
            worker_losses=times.losses,
            handovers=times.handovers,
            shared_with=round(times.batch_neighbours, 2),
            worker=times.worker,
            draft_tokens=times.draft_tokens,
            accepted_tokens=times.accepted_tokens,
            weight_versions=[WeightSpan(*span) for span in times.weights],
            **phases,
        )


class LatencyExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """Response of GET /v1/requests/{id}/explain."""

    id: str
    object: str = "request.explanation"
    created: int
    path: str
    state: str
    """running | ended"""
    status: str
    """HTTP status of the response; 499 after a client disconnect, empty while there is none."""
    error: str | None
    """Code of the error that ended the request."""
    wall_ms: float
    causes: list[TimelinePart]
    unattributed_ms: float
    """Wall time without a known cause."""
    choice: int | None
    """The choice that ended last; `causes` contains its times."""
    choices: list[ChoiceTimeline]
    summary: str


def milliseconds(seconds: float) -> float:
    """Convert seconds, rounded to microseconds."""
    return round(1000 * seconds, 3)


def summary(parts: list[TimelinePart], times: PhaseTimes | None) -> str:
    """Return the largest causes in one line."""
    greatest = sorted(parts, key=lambda part: -part.ms)[:3]
    words = [f"{part.cause} {100 * part.share:.0f} %" for part in greatest if part.ms]
    if times is not None and times.batch_neighbours:
        words.append(f"its steps were shared with {times.batch_neighbours:.1f} others")
    return ", ".join(words)
