"""A sequence arrives: it is refused, restarted, or queued with an estimate."""

from __future__ import annotations

from baton.protocol import Failed, QueueEstimate, Tokens
from baton_scheduler import errors
from baton_scheduler.events import Arrived, Decision, Reply
from baton_scheduler.sequence import Sequence, sequence
from baton_scheduler.state.base import StateBase


def arrived(state: StateBase, event: Arrived) -> list[Decision]:
    """Queue a sequence, or answer at once if it is refused or needs no worker."""
    state.counters.arrived += 1
    number = state.counters.arrived
    try:
        key = state.queue.of(event.submit.model).key
        new = sequence(event.gateway, event.submit, event.trace, number, state.now, key)
    except ValueError:
        return [Reply(event.gateway, errors.bad_frame(event.submit.handle))]
    old = state.live.get((event.gateway, new.handle))
    if old is not None:  # The gateway restarts it from its own log.
        state.drop(old)
    answer = _refusal(state, new) or _completion(state, new)
    if answer is not None:
        return [Reply(event.gateway, answer)]
    if new.adapter:
        state.adapters.used(new.adapter, new.arrival)
    new.estimate = _estimate(state, new)
    _enqueue(state, new)
    if event.deadline_ms > 0:
        state.deadlines.add(new, state.now + event.deadline_ms / 1000)
    return []


def _completion(state: StateBase, new: Sequence) -> Tokens | None:
    """The end of a sequence whose log is full already; None for any other."""
    if not new.complete:
        return None
    state.counters.finished += 1
    times = {new.handle: new.phase_timer.times(state.now)}
    return Tokens(b"", b"", b"", b"", finished={new.handle: "length"}, phase_times=times)


def _enqueue(state: StateBase, new: Sequence) -> None:
    gateway = new.gateway
    state.counters.prompt_tokens += new.num_prompt
    state.live[gateway, new.handle] = new
    latest = state.latest.get(gateway)
    if state.options.enable_prefix_caching and latest is not None and not latest.ended:
        new.follow(latest)
    state.latest[gateway] = new
    state.enqueue(new)
    if not state.fleet.serving(new.model).open:
        state.alone_since.setdefault(new.model, state.now)


def _refusal(state: StateBase, new: Sequence) -> Failed | None:
    if state.draining:
        return errors.shutting_down(new.handle)
    if not new.num_prompt:
        return errors.empty_prompt(new.handle)
    limits, rate = state.options, state.computed.rate(new.model)
    queue = state.queue.of(new.model)
    number, tokens = queue.share(new.submit.tenant)
    most, most_tokens = limits.max_num_queued_reqs, limits.max_num_queued_tokens
    # Without keys there are no tenants.
    share = limits.max_tenant_share if new.submit.tenant else 1.0
    too_many = number + 1 > max(1, most * share)
    if share < 1 and (too_many or tokens + new.num_tokens > most_tokens * share):
        # Under `fair`, sequences of other tenants also run before it.
        _, ahead = queue.ahead(new)
        return errors.over_share(new.handle, errors.retry_after(ahead, rate))
    waiting = queue.num_tokens
    if len(queue) < most and waiting + new.num_tokens <= most_tokens:
        return None
    return errors.overloaded(new.handle, errors.retry_after(waiting, rate))


def _estimate(state: StateBase, new: Sequence) -> QueueEstimate:
    """Queue position and estimated time to first token of a new sequence."""
    number, tokens = state.queue.of(new.model).ahead(new)
    fleet = state.fleet.serving(new.model)
    fast = [s for w in fleet if (s := w.seconds(new.num_tokens)) is not None]
    if not fast:
        return QueueEstimate(number, -1)
    # The workers share the queue before it, which must drain first.
    seconds = min(fast) + tokens / len(fast) * min(w.step_cost.line[1] for w in fleet)
    if number and (rate := state.start_rates.rate(new.model)):
        seconds = max(seconds, number / rate)
    return QueueEstimate(number, round(1000 * seconds))
