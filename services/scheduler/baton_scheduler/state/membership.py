"""Workers join, drain, change their role and leave."""

from __future__ import annotations

from baton_scheduler.events import (
    Decision,
    WorkerAssigned,
    WorkerDraining,
    WorkerJoined,
    WorkerLeft,
)
from baton_scheduler.state import administration, media_encoding, quarantine
from baton_scheduler.state.base import StateBase


def worker_joined(state: StateBase, event: WorkerJoined) -> list[Decision]:
    """Add a worker; one of the same name is lost."""
    rejoins = event.name in state.fleet or event.name in state.encodings.workers
    decisions = worker_left(state, WorkerLeft(event.name)) if rejoins else []
    if event.info.role == "encode":
        state.encodings.join(event.name, event.epoch, event.info)
        return decisions
    limits = state.options
    state.fleet.join(
        event.name,
        event.epoch,
        event.info,
        limits.max_num_batched_tokens,
        held=event.held,
        caching=limits.enable_prefix_caching,
    )
    worker = state.fleet.get(event.name)
    assert worker is not None
    return decisions + administration.joined(state, worker)


def worker_draining(state: StateBase, event: WorkerDraining) -> list[Decision]:
    """Give a worker no more sequences."""
    worker = state.fleet.get(event.name) or state.encodings.workers.get(event.name)
    if worker is not None:
        worker.draining = True
    return []


def worker_assigned(state: StateBase, event: WorkerAssigned) -> list[Decision]:
    """Change a worker's role; `Handoffs.begin` moves the sequences that no longer fit."""
    worker = state.fleet.get(event.name)
    if worker is not None:
        state.requeue(worker.assign(event.role))
    return []


def worker_left(state: StateBase, event: WorkerLeft) -> list[Decision]:
    """Remove a worker and rerun its sequences, or its encodings."""
    if event.name in state.encodings.workers:
        state.counters.lost_workers += not state.encodings.workers[event.name].draining
        return media_encoding.refuse(state, state.encodings.leave(event.name, event.cause))
    worker = state.fleet.leave(event.name)
    if worker is None:
        return []
    state.encodings.target_left(event.name)
    running = worker.batch.occupied()
    leaves = worker.draining or worker.switching
    state.counters.lost_workers += bool(running) or not leaves
    in_flight = quarantine.suspects(worker)
    for slot in running:
        state.requeue_lost(worker.evict(slot))
    decisions = state.handoffs.leave(worker, state.fleet)
    decisions += quarantine.worker_died(state, worker, in_flight, event.cause)
    return decisions + administration.worker_left(state, event.name)
