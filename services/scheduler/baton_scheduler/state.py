"""The state machine of the scheduler: events in, decisions out, without clock, socket or
randomness.

A live sequence is in exactly one place, and ends exactly once:

    arrived --> queue <-----> one slot of one worker --> ended: finish reason, error, or abort
                  |                                        ^
                  +----------------------------------------+

Equal events give equal decisions on every machine; `baton replay` checks this.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass
from hashlib import blake2b
from typing import assert_never

import msgspec

from baton.errors import WireError
from baton.protocol import (
    CacheReset,
    Failed,
    PhaseTimes,
    QueueEstimate,
    Result,
    Tokens,
    TruncatePlan,
)
from baton.protocol.token_columns import unpack
from baton_scheduler import errors
from baton_scheduler.deadlines import Deadlines
from baton_scheduler.disaggregation.handoff import Handoffs, ReadyHandoff
from baton_scheduler.events import (
    Aborted,
    Arrived,
    CacheCleared,
    Clock,
    Closing,
    Decision,
    Dispatch,
    Draining,
    Event,
    GatewayLost,
    Reply,
    Settled,
    Tell,
    Tick,
    Transferred,
    WorkerAssigned,
    WorkerDraining,
    WorkerJoined,
    WorkerLeft,
)
from baton_scheduler.options import SchedulerOptions
from baton_scheduler.phase_times import Phase
from baton_scheduler.placement.placement import Placement, prefill_candidates, with_room
from baton_scheduler.placement.policies import PLACEMENTS, parse_scores
from baton_scheduler.planner import plan
from baton_scheduler.queueing.model_queues import ModelQueues
from baton_scheduler.queueing.policies import parse_weights
from baton_scheduler.queueing.queue import Queue
from baton_scheduler.results import StepOutcome, abort_step, apply_result
from baton_scheduler.sequence import Sequence, sequence
from baton_scheduler.workers.cache_miss import explain
from baton_scheduler.workers.fleet import Fleet
from baton_scheduler.workers.in_flight import InFlightStep
from baton_scheduler.workers.meters import ModelRates, RateMeter
from baton_scheduler.workers.worker import Worker


@dataclass(slots=True)
class Counters:
    """Totals since the start."""

    arrived: int = 0
    finished: int = 0
    """Sequences that ended with a finish reason."""
    tokens: int = 0
    prompt_tokens: int = 0
    preemptions: int = 0
    lost_workers: int = 0
    stale_results: int = 0
    prefix_queries: int = 0
    """Prompt tokens looked up in the prefix cache, once per sequence."""
    prefix_hits: int = 0
    """Prompt tokens found in the prefix cache."""
    handoffs: int = 0
    """Running sequences that moved to another worker with their KV."""
    failed_transfers: int = 0
    """Failed KV transfers; they cost only time."""


class State:
    """Queues, fleet and live sequences; changed only by `apply`."""

    def __init__(self, limits: SchedulerOptions) -> None:
        self.options = limits
        self.now = 0.0
        self.draining = False
        self.queue = ModelQueues(limits.scheduling_policy, parse_weights(limits.tenant_weights))
        self.fleet = Fleet()
        weights = parse_scores(limits.placement_weights)
        self.placement: Placement = PLACEMENTS.load(limits.placement_policy)(weights)
        self.handoffs = Handoffs(self.placement)
        self.counters = Counters()
        self.sampled = RateMeter()
        """Tokens sampled per second."""
        self.computed = ModelRates()
        """Tokens run through a model per second, prompts included."""
        self.begun = ModelRates()
        """Sequences that began to run per second."""
        self._live: dict[tuple[str, int], Sequence] = {}
        self._gateways: dict[int, str] = {}
        """Number of a gateway in slot table columns -> its name."""
        self._numbers: dict[str, int] = {}
        self._latest: dict[str, Sequence] = {}
        """Gateway -> its latest sequence; the choices of a request arrive one after the other."""
        self._deadlines = Deadlines(self._live)
        self._alone_since: dict[str, float] = {}
        """Model -> time since which no worker takes its sequences; absent while one does."""

    @property
    def num_running(self) -> int:
        """Sequences that hold a slot."""
        return len(self._live) - len(self.queue)

    @property
    def idle(self) -> bool:
        """True if no sequence is alive."""
        return not self._live

    def apply(self, event: Event) -> list[Decision]:
        """Apply an event. Returns the messages to send, in this order."""
        match event:
            case Settled():
                return self._settled(event)
            case Tick():
                return self._tick(event)
            case Arrived():
                return self._arrived(event)
            case Aborted():
                return self._aborted(event)
            case GatewayLost():
                return self._gateway_lost(event)
            case Transferred():
                return self._transferred(event)
            case WorkerJoined():
                return self._worker_joined(event)
            case WorkerLeft():
                return self._worker_left(event)
            case WorkerDraining():
                return self._worker_draining(event)
            case WorkerAssigned():
                return self._worker_assigned(event)
            case CacheCleared():
                pages = sum(worker.pool.reset() for worker in self.fleet)
                return [Reply(event.gateway, CacheReset(event.id, pages))]
            case Clock():
                self.now = event.now
                return []
            case Draining():
                self.draining = True
                return []
            case Closing():
                return [self._fail(s, errors.shutting_down(s.handle)) for s in self._sequences()]
            case _:
                assert_never(event)

    # A sequence begins.

    def _arrived(self, event: Arrived) -> list[Decision]:
        self.counters.arrived += 1
        number = self.counters.arrived
        try:
            key = self.queue.of(event.submit.model).key
            new = sequence(event.gateway, event.submit, event.trace, number, self.now, key)
        except ValueError:
            return [Reply(event.gateway, errors.bad_frame(event.submit.handle))]
        old = self._live.get((event.gateway, new.handle))
        if old is not None:  # The gateway restarts it from its own log.
            self._drop(old)
        refused = self._refusal(new)
        if refused is not None:
            return [Reply(event.gateway, refused)]
        if new.complete:
            times = {new.handle: new.phase_timer.times(self.now)}
            nothing = Tokens(b"", b"", b"", b"", finished={new.handle: "length"}, phase_times=times)
            self.counters.finished += 1
            return [Reply(event.gateway, nothing)]
        new.estimate = self._note(new)
        self.counters.prompt_tokens += new.num_prompt
        self._live[event.gateway, new.handle] = new
        latest = self._latest.get(event.gateway)
        if self.options.enable_prefix_caching and latest is not None and not latest.ended:
            new.follow(latest)
        self._latest[event.gateway] = new
        if event.deadline_ms > 0:
            self._deadlines.add(new, self.now + event.deadline_ms / 1000)
        self.queue.push(new)
        if not self.fleet.serving(new.model).open:
            self._alone_since.setdefault(new.model, self.now)
        return []

    def _refusal(self, new: Sequence) -> Failed | None:
        if self.draining:
            return errors.shutting_down(new.handle)
        if not new.num_prompt:
            return errors.empty_prompt(new.handle)
        limits, rate = self.options, self.computed.rate(new.model)
        queue = self.queue.of(new.model)
        number, tokens = queue.share(new.submit.tenant)
        most, most_tokens = limits.max_num_queued_reqs, limits.max_num_queued_tokens
        share = limits.max_tenant_share
        if share < 1 and (
            number + 1 > most * share or tokens + new.num_tokens > most_tokens * share
        ):
            return errors.over_share(new.handle, errors.retry_after(tokens, rate))
        waiting = queue.num_tokens
        if len(queue) < most and waiting + new.num_tokens <= most_tokens:
            return None
        return errors.overloaded(new.handle, errors.retry_after(waiting, rate))

    def _note(self, new: Sequence) -> QueueEstimate:
        """Queue position and estimated time to first token of a new sequence."""
        number, tokens = self.queue.of(new.model).ahead(new)
        fleet = self.fleet.serving(new.model)
        fast = [s for w in fleet if (s := w.seconds(new.num_tokens)) is not None]
        if not fast:
            return QueueEstimate(number, -1)
        # The workers share the queue before it, which must drain first.
        seconds = min(fast) + tokens / len(fast) * min(w.pace.line[1] for w in fleet)
        if number and (rate := self.begun.rate(new.model)):
            seconds = max(seconds, number / rate)
        return QueueEstimate(number, round(1000 * seconds))

    # A sequence ends.

    def _aborted(self, event: Aborted) -> list[Decision]:
        times: dict[int, PhaseTimes] = {}
        for handle in unpack(event.handles, "I"):
            live = self._live.get((event.gateway, handle))
            if live is not None:
                self._drop(live)
                times[handle] = live.phase_timer.times(self.now)
        return (
            [Reply(event.gateway, Tokens(b"", b"", b"", b"", phase_times=times))] if times else []
        )

    def _gateway_lost(self, event: GatewayLost) -> list[Decision]:
        for live in self._sequences():
            if live.gateway == event.gateway:
                self._drop(live)
        self._latest.pop(event.gateway, None)
        number = self._numbers.pop(event.gateway, None)
        if number is not None:
            del self._gateways[number]
        return []

    def _drop(self, live: Sequence) -> None:
        """End a sequence without a message, wherever it is."""
        worker = self.fleet.get(live.worker)
        if worker is None:
            self.queue.remove(live)
        else:
            worker.withdraw(live.slot)
        self._forget(live)

    def _fail(self, live: Sequence, failed: Failed) -> Decision:
        """End a sequence with an error, wherever it is."""
        self._drop(live)
        return self._failed(live, failed)

    def _failed(self, live: Sequence, failed: Failed) -> Decision:
        """The error message of a sequence that has ended."""
        times = live.phase_timer.times(self.now)
        return Reply(live.gateway, msgspec.structs.replace(failed, phase_times=times))

    def _forget(self, live: Sequence) -> None:
        """End a sequence that has left its queue or slot."""
        live.end()
        del self._live[live.gateway, live.handle]

    # Workers come and go.

    def _worker_joined(self, event: WorkerJoined) -> list[Decision]:
        decisions = self._worker_left(WorkerLeft(event.name)) if event.name in self.fleet else []
        limits = self.options
        self.fleet.join(
            event.name,
            event.epoch,
            event.info,
            limits.max_num_batched_tokens,
            held=event.held,
            caching=limits.enable_prefix_caching,
        )
        return decisions

    def _worker_draining(self, event: WorkerDraining) -> list[Decision]:
        worker = self.fleet.get(event.name)
        if worker is not None:
            worker.draining = True
        return []

    def _worker_assigned(self, event: WorkerAssigned) -> list[Decision]:
        """Change a worker's role; `Handoffs.begin` moves the sequences that no longer fit."""
        worker = self.fleet.get(event.name)
        if worker is not None:
            self._requeue(worker.assign(event.role))
        return []

    def _worker_left(self, event: WorkerLeft) -> list[Decision]:
        worker = self.fleet.leave(event.name)
        if worker is None:
            return []
        running = worker.batch.occupied()
        self.counters.lost_workers += bool(running) or not worker.draining
        exposed = [bool(worker.batch.sent[slot]) for slot in running]
        lost = [worker.evict(slot) for slot in running]
        return self.handoffs.leave(worker, self.fleet) + self._rerun(lost, exposed)

    def _rerun(self, lost: list[Sequence], exposed: list[bool]) -> list[Decision]:
        """Return lost sequences to the queue, where their keys put them before all later ones.

        A sequence that was running at several worker losses may be the cause, and is failed.
        """
        decisions: list[Decision] = []
        for live, blamed in zip(lost, exposed, strict=True):
            live.losses += blamed
            live.phase_timer.left(Phase.LOST, self.now)
            if live.losses < self.options.max_worker_losses:
                self.queue.push(live)
            else:
                self._forget(live)
                failed = errors.quarantined(live.handle, live.losses)
                decisions.append(self._failed(live, failed))
        return decisions

    # A sequence changes its worker.

    def _passed_on(self) -> list[Decision]:
        decisions, ready = self.handoffs.begin(self.fleet)
        for passed in ready:
            self._change_over(passed)
        return decisions

    def _transferred(self, event: Transferred) -> list[Decision]:
        self.counters.failed_transfers += bool(event.pulled.reason)
        decisions, passed = self.handoffs.end(event.worker, event.pulled, self.fleet)
        if passed is not None:
            self._change_over(passed)
        return decisions

    def _change_over(self, passed: ReadyHandoff) -> None:
        """Move a sequence to the target; if the target has no room left, the source continues."""
        live, source, target = passed
        if target.has_room(live):
            source.withdraw(live.slot)
            target.place(live, self._number(live.gateway))
            live.phase_timer.left(Phase.MOVED, self.now)
            self.counters.handoffs += 1

    # A step ends.

    def _settled(self, event: Settled) -> list[Decision]:
        worker, result = self.fleet.get(event.worker), event.result
        if worker is None or worker.epoch != result.epoch:
            self.counters.stale_results += 1
            return []
        if result.step not in worker.flights:
            self.counters.stale_results += 1
            return []
        decisions: list[Decision] = []
        while (
            worker.flights.first.step != result.step
        ):  # Results arrive in order, so these are lost.
            decisions += self._abandoned(worker, worker.flights.pop())
        flight = worker.flights.pop()
        try:
            if result.truncated_at:
                worker.shorten(result.truncated_at)
            outcome = apply_result(worker, flight, result, self.now)
        except WireError:
            self.counters.stale_results += 1
            return decisions + self._abandoned(worker, flight)
        self._count(worker, flight, outcome, result)
        return decisions + self._told(outcome)

    def _abandoned(self, worker: Worker, flight: InFlightStep) -> list[Decision]:
        lost = abort_step(worker, flight)
        return self._rerun(lost, [True] * len(lost))

    def _count(
        self, worker: Worker, flight: InFlightStep, outcome: StepOutcome, result: Result
    ) -> None:
        num_sampled = len(outcome.tenants)
        worker.note(flight, num_sampled, result, self.now)
        self.computed.add(worker.info.model, flight.num_tokens)
        self.sampled.add(num_sampled)
        self.queue.sampled(outcome.tenants)
        self.counters.tokens += num_sampled
        self.counters.finished += len(outcome.ended)

    def _told(self, outcome: StepOutcome) -> list[Decision]:
        decisions: list[Decision] = [
            Reply(self._gateways[number], tokens) for number, tokens in outcome.tokens
        ]
        for live in outcome.ended:
            self._forget(live)
        for live, reason in outcome.failed:
            self._forget(live)
            decisions.append(self._failed(live, errors.broken(live.handle, reason)))
        return decisions + self._rerun(outcome.missing, [True] * len(outcome.missing))

    # Time passes.

    def _tick(self, event: Tick) -> list[Decision]:
        self.now = event.now
        self.sampled.tick(self.now)
        self.computed.tick(self.now)
        self.begun.tick(self.now)
        decisions = self._expire() + self._give_up() + self._place() + self._passed_on()
        for worker in self.fleet:
            worker.tick(self.now)
            decisions += self._planned(worker)
        return self._names() + decisions

    def _names(self) -> list[Decision]:
        """Page hash updates, to be sent before any plan or pull writes to the pages."""
        news = ((worker.name, worker.news(self.now)) for worker in self.fleet)
        return [Tell(name, kept) for name, kept in news if kept is not None]

    def _expire(self) -> list[Decision]:
        """End sequences whose deadline has passed, wherever they are."""
        decisions: list[Decision] = []
        for live in self._deadlines.due(self.now):
            if live.cached is None:
                rate = self.computed.rate(live.model)
                seconds = errors.retry_after(self.queue.of(live.model).num_tokens, rate)
                failed = errors.queue_timeout(live.handle, seconds)
            else:
                failed = errors.deadline_exceeded(live.handle, len(live.log))
            decisions.append(self._fail(live, failed))
        return decisions

    def _give_up(self) -> list[Decision]:
        """Fail sequences that have waited too long without any worker."""
        return [
            self._fail(live, errors.no_worker(live.handle, self.options.no_worker_seconds))
            for model, queue in self.queue.items()
            for live in self._without_worker(model, queue)
        ]

    def _without_worker(self, model: str, queue: Queue) -> list[Sequence]:
        """Sequences that have waited longer than allowed without a worker of their model."""
        if self.fleet.serving(model).open:
            self._alone_since.pop(model, None)
            return []
        since = self._alone_since.setdefault(model, self.now)
        patience = self.options.no_worker_seconds
        if self.now - since <= patience:
            return []
        return [s for s in queue if self.now - max(s.since, since) > patience]

    def _place(self) -> list[Decision]:
        """Start waiting sequences of every model."""
        decisions: list[Decision] = []
        for model, queue in self.queue.items():
            decisions += self._place_from(queue, self.fleet.serving(model))
        return decisions

    def _place_from(self, queue: Queue, fleet: Fleet) -> list[Decision]:
        """Start the sequences of one queue on the workers of its model, in strict order: none
        overtakes the head of its queue."""
        decisions: list[Decision] = []
        while fleet.open and (head := queue.head) is not None:
            if not fleet.fits(head):
                failed = errors.too_long(head.handle, head.num_tokens, fleet.max_model_len)
                decisions.append(self._fail(head, failed))
                continue
            owners = self._owners(head, fleet)
            free = with_room(head, owners)
            if free:
                worker: Worker | None = self.placement.start(head, free, fleet)
            else:
                worker = self._make_way(head, owners, queue)
            if worker is None:
                break
            queue.remove(head)
            self._start(head, worker)
        return decisions

    def _owners(self, head: Sequence, fleet: Fleet) -> list[Worker]:
        """Workers that may start the head of a queue."""
        willing = prefill_candidates(head, fleet, self.options.local_prefill_max_tokens)
        return self.placement.owners(head, willing)

    def _make_way(self, head: Sequence, owners: list[Worker], queue: Queue) -> Worker | None:
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
        self._requeue([worker.evict(slot) for slot in slots])
        return worker

    def _requeue(self, preempted: list[Sequence]) -> None:
        self.counters.preemptions += len(preempted)
        for live in preempted:
            live.phase_timer.left(Phase.PREEMPTED, self.now)
            self.queue.push(live)

    def _start(self, live: Sequence, worker: Worker) -> None:
        live.phase_timer.placed(self.now, worker.name)
        if live.cached is not None:
            worker.place(live, self._number(live.gateway))
            return
        queue = self.queue.of(live.model)
        queue.started(live)
        self.begun.add(worker.info.model, 1)
        hit = worker.place(live, self._number(live.gateway))
        if live.submit.explain and live.estimate is not None:
            reason = explain(worker, live, hit)
            live.estimate = msgspec.structs.replace(
                live.estimate, miss_reason=reason, miss_position=hit
            )
            worker.batch.unsent_estimates[live.slot] = live.estimate
        queue.charge(live, live.num_tokens - hit)
        if worker.caching:
            self.counters.prefix_queries += live.num_prompt
            self.counters.prefix_hits += live.cached or 0

    def _number(self, gateway: str) -> int:
        number = self._numbers.get(gateway)
        if number is None:
            number = max(self._gateways, default=0) + 1
            self._numbers[gateway], self._gateways[number] = number, gateway
        return number

    def _planned(self, worker: Worker) -> list[Decision]:
        decisions: list[Decision] = []
        flights, model = worker.flights, worker.info.model
        waiting = self.queue.num_waiting(model)
        urgent = flights.wasteful or worker.batch.pending_prefill_tokens or waiting
        if not urgent and len(flights) >= self.options.plans_in_flight:
            return []
        if urgent and flights.can_truncate:
            flights.truncated = True
            decisions.append(Tell(worker.name, TruncatePlan(worker.epoch, flights.first_step)))
        while len(flights) < flights.patience(self.options.plans_in_flight):
            most = 1 if self.queue.num_waiting(model) else self.options.max_steps_per_plan
            message, preempted = plan(worker, self.now, most)
            self._requeue(preempted)
            if message is None:
                break
            decisions.append(Dispatch(worker.name, message))
        return decisions

    # What can be said about the whole.

    def _sequences(self) -> list[Sequence]:
        return list(self._live.values())

    def digest(self) -> bytes:
        """16 bytes that differ whenever a decision could. Logs count by length only, since their
        tokens are in the decisions, which a recording also hashes."""
        total = blake2b(digest_size=16)
        for part in self._parts():
            total.update(part)
        return total.digest()

    def _parts(self) -> Iterator[bytes]:
        yield repr((self.now, self.draining, self._alone_since, self._numbers)).encode()
        yield repr(astuple(self.counters)).encode()
        yield self.queue.layout()
        yield self.handoffs.layout()
        yield self.placement.layout()
        for s in self._live.values():
            place = (s.gateway, s.handle, s.key, len(s.log), s.losses, s.worker, s.slot)
            towards = (s.bound, s.ahead)
            now = (s.cached, s.deadline, s.begun, s.waits, s.phase_timer.mark)
            yield repr((*place, *towards, *now)).encode()
        for worker in self.fleet:
            f = worker.flights
            ends = (f.first_step, f.next_step, f.truncated, f.wasteful)
            flights = [(flight.step, flight.sent) for flight in f]
            yield repr((worker.name, worker.epoch, worker.info.role, *ends, flights)).encode()
            yield worker.batch.layout()
            yield worker.pool.layout()

    def check(self) -> None:
        """Assert all invariants of the state and its parts."""
        for worker in self.fleet:
            worker.check()
        self.handoffs.check(self.fleet)
        places = [
            worker.batch.at(slot) for worker in self.fleet for slot in worker.batch.occupied()
        ]
        assert all(
            worker.batch.at(slot).model in ("", worker.info.model)
            for worker in self.fleet
            for slot in worker.batch.occupied()
        )
        assert all(s.worker is None for s in self.queue)
        together = sorted(s.arrival for s in (*places, *self.queue))
        assert together == sorted(s.arrival for s in self._live.values())
        assert self.queue.num_tokens == sum(s.num_tokens for s in self.queue)
        assert not any(s.ended for s in self._live.values())
