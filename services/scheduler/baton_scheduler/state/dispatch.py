"""Time passes: waiting sequences start, and each worker gets its next plans."""

from __future__ import annotations

import msgspec

from baton.protocol import Failed, TruncatePlan
from baton_scheduler import errors
from baton_scheduler.events import Decision, Dispatch, Tick, WorkerMessage
from baton_scheduler.placement.placement import prefill_candidates, with_room
from baton_scheduler.planning.planner import plan
from baton_scheduler.queueing.queue import Queue
from baton_scheduler.sequence import Sequence
from baton_scheduler.state import (
    administration,
    cancellation,
    migration,
    pause,
    quarantine,
    weight_updates,
)
from baton_scheduler.state.base import StateBase
from baton_scheduler.workers.cache_miss import explain
from baton_scheduler.workers.fleet import Fleet
from baton_scheduler.workers.worker import Worker


def tick(state: StateBase, event: Tick) -> list[Decision]:
    """Advance time: end expired sequences, start waiting ones, move ready ones, plan each
    worker."""
    state.now = event.now
    state.sampled.tick(state.now)
    state.computed.tick(state.now)
    state.start_rates.tick(state.now)
    decisions = (
        cancellation.expire(state)
        + cancellation.give_up(state)
        + quarantine.proceed(state)
        + administration.drop_unused(state)
        + pause.settle(state)
        + weight_updates.proceed(state)
        + place(state)
        + state.encodings.dispatch(state.now, state.fleet)
        + migration.begin_handoffs(state)
    )
    for worker in state.fleet:
        worker.tick(state.now)
        decisions += _plan_ahead(state, worker)
    return _page_hashes(state) + decisions


def _page_hashes(state: StateBase) -> list[Decision]:
    """Page hash updates, to be sent before any plan or pull writes to the pages."""
    hash_updates = ((worker.name, worker.hash_updates(state.now)) for worker in state.fleet)
    return [WorkerMessage(name, hashes) for name, hashes in hash_updates if hashes is not None]


def place(state: StateBase) -> list[Decision]:
    """Start waiting sequences of every model."""
    _place_suspects(state)
    decisions: list[Decision] = []
    for model, queue in state.queue.items():
        if model in state.paused:
            continue
        if queue.head is not None:
            decisions += administration.wake(state, model)
        decisions += _place_from(state, queue, state.fleet.serving(model))
    return decisions


def _place_suspects(state: StateBase) -> None:
    """Start suspects on their trial worker, before the queue: no other sequence can start there."""
    for worker in state.fleet:
        for live in worker.trial.members if worker.trial is not None else ():
            if live.worker is None and worker.has_room(live):
                state.queue.remove(live)
                _start(state, live, worker)


def _place_from(state: StateBase, queue: Queue, fleet: Fleet) -> list[Decision]:
    """Start the sequences of one queue on the workers of its model, in strict order: none overtakes
    the head of its queue."""
    decisions: list[Decision] = []
    while fleet.open and (head := queue.head) is not None:
        if not fleet.fits(head):
            if not fleet.has_adapter(head):
                if administration.coming(state, head.model):
                    break  # A worker is still loading it.
                if restoring := administration.restore(state, head.model, head.adapter):
                    decisions += restoring
                    break
            decisions.append(state.fail(head, _misfit(head, fleet)))
            continue
        owners = _owners(state, head, fleet)
        free = _near_its_media(head, with_room(head, owners))
        if free:
            worker: Worker | None = state.placement.start(head, free, fleet)
        else:
            worker = _make_way(state, head, owners, queue)
        if worker is None:
            break
        if state.encodings.pull(head, worker):
            continue  # It waits for its embeddings; others start meanwhile.
        queue.remove(head)
        _start(state, head, worker)
    return decisions


def _near_its_media(head: Sequence, free: list[Worker]) -> list[Worker]:
    """The worker among these that has the embeddings of its media."""
    return [worker for worker in free if worker.name == head.media_worker] or free


def _misfit(head: Sequence, fleet: Fleet) -> Failed:
    """Reason why no worker can ever run a sequence."""
    if not fleet.has_adapter(head):
        return errors.no_adapter(head.handle)
    if head.spans.longest > fleet.budget:
        return errors.span_too_long(head.handle, head.spans.longest, fleet.budget)
    return errors.too_long(head.handle, head.num_tokens, fleet.max_model_len)


def _owners(state: StateBase, head: Sequence, fleet: Fleet) -> list[Worker]:
    """Workers that may start the head of a queue."""
    candidates = prefill_candidates(head, fleet, state.options.local_prefill_max_tokens)
    return state.placement.owners(head, candidates)


def _make_way(
    state: StateBase, head: Sequence, owners: list[Worker], queue: Queue
) -> Worker | None:
    """Preempt the fewest sequences, all on one worker, that the head outranks and whose slots
    and pages are enough to start it."""
    ways = [(w, w.yielding(head, queue.outranks)) for w in owners]
    worker, slots = min(
        ((worker, slots) for worker, slots in ways if slots),
        key=lambda way: (len(way[1]), way[0].load),
        default=(None, []),
    )
    if worker is None:
        return None
    state.requeue([worker.evict(slot) for slot in slots])
    return worker


def _start(state: StateBase, live: Sequence, worker: Worker) -> None:
    live.phase_timer.place(state.now, worker.name)
    live.phase_timer.computed_with(worker.info.weights.label, len(live.log))
    state.encodings.start(live, worker)
    if live.cached is not None:
        worker.place(live, state.number(live.gateway))
        return
    queue = state.queue.of(live.model)
    queue.started(live)
    state.start_rates.add(worker.info.model, 1)
    hit = worker.place(live, state.number(live.gateway))
    if live.submit.explain and live.estimate is not None:
        reason = explain(worker, live, hit)
        live.estimate = msgspec.structs.replace(
            live.estimate, miss_reason=reason, miss_position=hit
        )
        worker.batch.unsent_estimates[live.slot] = live.estimate
    queue.charge(live, live.num_tokens - hit)
    if worker.caching:
        state.counters.prefix_queries += live.num_prompt
        state.counters.prefix_hits += live.cached or 0


def _plan_ahead(state: StateBase, worker: Worker) -> list[Decision]:
    decisions: list[Decision] = []
    flights, model = worker.flights, worker.info.model
    waiting = state.queue.num_waiting(model)
    urgent = flights.wasteful or worker.batch.pending_prefill_tokens or waiting
    depth = max(state.options.plans_in_flight, worker.info.pipeline_stages)
    if not urgent and len(flights) >= depth:
        return []
    if urgent and flights.can_truncate:
        flights.truncated = True
        decisions.append(WorkerMessage(worker.name, TruncatePlan(worker.epoch, flights.first_step)))
    while len(flights) < flights.max_in_flight(depth):
        most = 1 if state.queue.num_waiting(model) else state.options.max_steps_per_plan
        message, preempted = plan(
            worker,
            state.now,
            most,
            state.options.max_num_encoder_input_tokens,
            state.options.max_itl_ms / 1000,
        )
        state.requeue(preempted)
        if message is None:
            break
        decisions.append(Dispatch(worker.name, message))
    return decisions
