"""The end of a step: its result is applied, counted, and sent to the gateways."""

from __future__ import annotations

from baton.errors import WireError
from baton.protocol import Result
from baton_scheduler import errors
from baton_scheduler.events import Decision, Reply, Settled
from baton_scheduler.results.step_result import StepOutcome, abort_step, apply_result
from baton_scheduler.state.base import StateBase
from baton_scheduler.workers.in_flight import InFlightStep
from baton_scheduler.workers.worker import Worker


def settled(state: StateBase, event: Settled) -> list[Decision]:
    """Apply the result of a step; one of another epoch or step is dropped and counted."""
    worker, result = state.fleet.get(event.worker), event.result
    if worker is None or worker.epoch != result.epoch:
        state.counters.stale_results += 1
        return []
    if result.step not in worker.flights:
        state.counters.stale_results += 1
        return []
    decisions: list[Decision] = []
    while worker.flights.first.step != result.step:  # Results arrive in order, so these are lost.
        decisions += _abandoned(state, worker, worker.flights.pop())
    flight = worker.flights.pop()
    try:
        if result.truncated_at:
            worker.shorten(result.truncated_at)
        outcome = apply_result(worker, flight, result, state.now)
    except WireError:
        state.counters.stale_results += 1
        return decisions + _abandoned(state, worker, flight)
    _count(state, worker, flight, outcome, result)
    return decisions + _tell(state, outcome)


def _abandoned(state: StateBase, worker: Worker, flight: InFlightStep) -> list[Decision]:
    return state.rerun(abort_step(worker, flight))


def _count(
    state: StateBase, worker: Worker, flight: InFlightStep, outcome: StepOutcome, result: Result
) -> None:
    num_sampled = len(outcome.tenants)
    worker.note(flight, num_sampled, result, state.now)
    state.computed.add(worker.info.model, flight.num_tokens)
    state.sampled.add(num_sampled)
    state.queue.sampled(outcome.tenants)
    state.counters.tokens += num_sampled
    state.counters.media_encoded_locally += result.num_encoded
    state.counters.add_drafts(outcome.drafted, outcome.accepted)
    state.counters.finished += len(outcome.ended)


def _tell(state: StateBase, outcome: StepOutcome) -> list[Decision]:
    decisions: list[Decision] = [
        Reply(state.gateways[number], tokens) for number, tokens in outcome.tokens
    ]
    for live in outcome.ended:
        state.forget(live)
    for live, reason in outcome.failed:
        state.forget(live)
        decisions.append(state.failure(live, errors.broken(live.handle, reason)))
    for live, reason in outcome.invalid:
        state.forget(live)
        decisions.append(state.failure(live, errors.bad_media(live.handle, reason)))
    for live, reason in outcome.unfollowable:
        state.forget(live)
        decisions.append(state.failure(live, errors.bad_grammar(live.handle, reason)))
    return decisions + state.rerun(outcome.missing)
