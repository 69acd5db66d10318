"""Autoscaling signals: the number of workers of each role that would meet the targets.

Each pressure is a measured value divided by its target; the largest decides by how much the role
should grow or shrink. A value counts only where more workers would help:

    queue    seconds of waiting for this role, against the target time to first token
    ttft     measured time to first token, while sequences wait: a prompt that is slow on an idle
             worker is as slow on one of ten
    itl      measured time between tokens, while sequences share a worker: a single one decodes no
             faster elsewhere
    kv       share of held pages, against `FULL`
    compute  tokens per second, against `FULL` of the rate of full steps

Encode workers run no sequences: `queue` is the time to encode what waits, `compute` the share of
time that their encoders run.

The scheduler itself does not scale; it uses the workers that are present.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from typing import NamedTuple

import msgspec

from baton.protocol import RoleStats
from baton_scheduler.disaggregation.handoff import ready_handoffs
from baton_scheduler.phase_times import Phase
from baton_scheduler.queueing.queue import Queue
from baton_scheduler.state import State
from baton_scheduler.workers.fleet import Fleet
from baton_scheduler.workers.worker import Worker

FULL = 0.8
"""Share of pages, and of tokens per second, above which a role should grow."""
_MOST = 2.0
"""Maximum growth factor per decision; the next one sees its effect."""
_CLOSE = 0.1
"""Relative distance to the target within which a role is not resized."""


class Targets(NamedTuple):
    """Latency targets in seconds."""

    ttft: float = 2.0
    itl: float = 0.1


def roles(state: State, targets: Targets) -> tuple[RoleStats, ...]:
    """One entry per role that has a worker, by name.

    Each model has its own workers and queue, so a role is measured per model: the numbers of
    workers add up, and the other values are those of the model under the most pressure.
    """
    by_role: dict[str, list[RoleStats]] = {}
    for model in state.fleet.models:
        for role in {worker.info.role for worker in state.fleet.serving(model)}:
            by_role.setdefault(role, []).append(_role(role, model, state, targets))
    encoders = state.fleet.encoders.values()
    for model in sorted({worker.info.model for worker in encoders}):
        by_role.setdefault("encode", []).append(_encode_role(model, state, targets))
    return tuple(_together(by_role[role]) for role in sorted(by_role))


def _encode_role(model: str, state: State, targets: Targets) -> RoleStats:
    """Pressure is the time to encode what waits, and the share of time that encoders run."""
    workers, queue = state.fleet.encoders.serving(model), state.encodings.backlog(model)
    busy = _mean((w.tokens.rate / w.encode_cost.rate, 1) for w in workers if w.encode_cost.rate)
    pressure = {"queue": queue / targets.ttft, "compute": busy / FULL}
    desired = desired_workers(len(workers), max(pressure.values()))
    return RoleStats("encode", len(workers), desired, queue, 0.0, 0.0, pressure)


def _together(rows: list[RoleStats]) -> RoleStats:
    """One role of several models."""
    worst = max(rows, key=lambda row: max(row.pressure.values()))
    ready, desired = sum(row.ready for row in rows), sum(row.desired for row in rows)
    return msgspec.structs.replace(worst, ready=ready, desired=desired)


def _role(role: str, model: str, state: State, targets: Targets) -> RoleStats:
    fleet = state.fleet.serving(model)
    workers = [w for w in fleet if w.info.role == role and not w.draining]
    begins, decodes = role != "decode" or _alone(fleet), role != "prefill"
    queue = max(
        _queued(workers, state.queue.for_workers(model), state.now) if begins else 0.0,
        _longest_handoff_wait(fleet, state.now) if decodes else 0.0,
    )
    ttft = _mean((w.latency.ttft, 1) for w in workers if w.latency.ttft) if begins else 0.0
    rows = sum(len(w.batch) for w in workers)
    itl = _mean((w.latency.itl, len(w.batch)) for w in workers) if decodes else 0.0
    pressure = {
        "queue": queue / targets.ttft,
        "ttft": ttft / targets.ttft if queue else 0.0,
        "itl": itl / targets.itl if rows > len(workers) else 0.0,
        "kv": _kv(workers) / FULL,
        "compute": _compute(workers) / FULL,
    }
    desired = desired_workers(len(workers), max(pressure.values()))
    return RoleStats(role, len(workers), desired, queue, ttft, itl, pressure)


def desired_workers(ready: int, pressure: float) -> int:
    """Number of workers for a pressure of about 1, at least one."""
    if abs(pressure - 1) <= _CLOSE:
        return max(1, ready)
    return max(1, ceil(ready * min(pressure, _MOST)))


def _alone(fleet: Fleet) -> bool:
    """True if decode workers also start sequences."""
    return all(worker.info.role == "decode" for worker in fleet)


def _queued(workers: list[Worker], queues: list[Queue], now: float) -> float:
    """Waiting time of the oldest queued sequence, or the time to compute the queues."""
    ages = [now - sequence.phase_timer.mark[1] for queue in queues for sequence in queue]
    rate, tokens = sum(map(capacity, workers)), sum(queue.num_tokens for queue in queues)
    return max([*ages, tokens / rate if rate else 0.0])


def _longest_handoff_wait(fleet: Fleet, now: float) -> float:
    """Longest time that a sequence has decoded on a prefill worker for lack of a decode target."""
    marks = [
        worker.batch.at(slot).phase_timer.mark
        for worker in fleet
        if worker.info.role == "prefill"
        for slot in ready_handoffs(worker)
    ]
    return max((now - since for phase, since in marks if phase == Phase.DECODE), default=0.0)


def _kv(workers: list[Worker]) -> float:
    total = sum(w.pool.total for w in workers)
    return sum(w.pool.num_held for w in workers) / total if total else 0.0


def _compute(workers: list[Worker]) -> float:
    rate = sum(map(capacity, workers))
    return sum(w.latency.computed.rate for w in workers) / rate if rate else 0.0


def capacity(worker: Worker) -> float:
    """Tokens per second of full steps; 0 before prefill is measured."""
    if not worker.step_cost.varied:
        return 0.0
    seconds = worker.step_cost.seconds(worker.budget, 1)
    return worker.budget / seconds if seconds else 0.0


def _mean(values: Iterable[tuple[float, int]]) -> float:
    """Weighted mean of (value, weight)."""
    pairs = list(values)
    weight = sum(number for _, number in pairs)
    return sum(value * number for value, number in pairs) / weight if weight else 0.0


__all__ = ["FULL", "Targets", "capacity", "desired_workers", "roles"]
