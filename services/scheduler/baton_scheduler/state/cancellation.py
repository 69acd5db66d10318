"""Sequences that end early: aborted, of a lost gateway, past their deadline, or without a
worker."""

from __future__ import annotations

from baton.protocol import PhaseTimes, Tokens
from baton.protocol.token_columns import unpack
from baton_scheduler import errors
from baton_scheduler.events import Aborted, Decision, GatewayLost, Reply
from baton_scheduler.queueing.queue import Queue
from baton_scheduler.sequence import Sequence
from baton_scheduler.state.base import StateBase


def aborted(state: StateBase, event: Aborted) -> list[Decision]:
    """End sequences that their gateway has aborted, without an error."""
    times: dict[int, PhaseTimes] = {}
    for handle in unpack(event.handles, "I"):
        live = state.live.get((event.gateway, handle))
        if live is not None:
            state.drop(live)
            times[handle] = live.phase_timer.times(state.now)
    return [Reply(event.gateway, Tokens(b"", b"", b"", b"", phase_times=times))] if times else []


def gateway_lost(state: StateBase, event: GatewayLost) -> list[Decision]:
    """End the sequences of a gateway and remove the gateway."""
    for live in state.sequences():
        if live.gateway == event.gateway:
            state.drop(live)
    state.latest.pop(event.gateway, None)
    number = state.numbers.pop(event.gateway, None)
    if number is not None:
        del state.gateways[number]
    return []


def close(state: StateBase) -> list[Decision]:
    """End every sequence, since the scheduler ends."""
    return [state.fail(s, errors.shutting_down(s.handle)) for s in state.sequences()]


def expire(state: StateBase) -> list[Decision]:
    """End sequences whose deadline has passed, wherever they are."""
    decisions: list[Decision] = []
    for live in state.deadlines.pop_expired(state.now):
        if live.cached is None:
            rate = state.computed.rate(live.model)
            seconds = errors.retry_after(state.queue.of(live.model).num_tokens, rate)
            failed = errors.queue_timeout(live.handle, seconds)
        else:
            failed = errors.deadline_exceeded(live.handle, len(live.log))
        decisions.append(state.fail(live, failed))
    return decisions


def give_up(state: StateBase) -> list[Decision]:
    """Fail sequences that have waited too long without any worker."""
    return [
        state.fail(live, errors.no_worker(live.handle, state.options.no_worker_seconds))
        for model, queue in state.queue.items()
        for live in _without_worker(state, model, queue)
    ]


def _without_worker(state: StateBase, model: str, queue: Queue) -> list[Sequence]:
    """Sequences that have waited longer than allowed without a worker of their model."""
    if state.fleet.serving(model).open:
        state.alone_since.pop(model, None)
        return []
    since = state.alone_since.setdefault(model, state.now)
    limit = state.options.no_worker_seconds
    if state.now - since <= limit:
        return []
    return [s for s in queue if state.now - max(s.arrival_time, since) > limit]
