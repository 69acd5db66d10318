"""The whole state as plain data: events in, decisions out. No clock, no socket, no chance.

A live sequence is in exactly one place, and leaves it exactly once:

    arrived --> queue <-----> one slot of one worker --> ended: finish reason, error, or abort
                  |                                        ^
                  +----------------------------------------+

Equal events give equal decisions on every machine: that is what `baton replay` checks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass
from hashlib import blake2b
from typing import assert_never

from baton.errors import WireError
from baton.protocol import Failed, Result, Tokens
from baton.tokens import unpack
from baton_scheduler import refusal
from baton_scheduler.events import (
    Aborted,
    Arrived,
    Closing,
    Decision,
    Dispatch,
    Draining,
    Event,
    GatewayLost,
    Reply,
    Settled,
    Tick,
    WorkerDraining,
    WorkerJoined,
    WorkerLeft,
)
from baton_scheduler.fleet import Fleet, Flight, Worker
from baton_scheduler.limits import Limits
from baton_scheduler.meter import Meter
from baton_scheduler.planner import plan
from baton_scheduler.queue import ORDERS, Queue
from baton_scheduler.request import Sequence, sequence
from baton_scheduler.settle import Outcome, abandon, settle


@dataclass(slots=True)
class Counters:
    """Totals since the start."""

    arrived: int = 0
    finished: int = 0
    """Sequences that came to a finish reason."""
    tokens: int = 0
    prompt_tokens: int = 0
    preemptions: int = 0
    lost_workers: int = 0
    stale_results: int = 0


class State:
    """Queue, fleet and live sequences. `apply` is the only way to change it."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.now = 0.0
        self.draining = False
        self.queue = Queue()
        self.fleet = Fleet()
        self.counters = Counters()
        self.sampled = Meter()
        """Tokens sampled per second."""
        self.computed = Meter()
        """Tokens run through the model per second, prompts included."""
        self._order = ORDERS.load(limits.order)
        self._live: dict[tuple[str, int], Sequence] = {}
        self._gateways: dict[int, str] = {}
        """Names by the numbers that batches hold in a column."""
        self._numbers: dict[str, int] = {}
        self._alone_since: float | None = 0.0
        """Since when no worker takes new sequences; None while one does."""

    @property
    def num_running(self) -> int:
        """Sequences that hold a slot."""
        return len(self._live) - len(self.queue)

    @property
    def idle(self) -> bool:
        """No sequence is alive."""
        return not self._live

    def apply(self, event: Event) -> list[Decision]:
        """Take one event in and return what must be sent, in this order."""
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
            case WorkerJoined():
                return self._worker_joined(event)
            case WorkerLeft():
                return self._worker_left(event)
            case WorkerDraining():
                return self._worker_draining(event)
            case Draining():
                self.draining = True
                return []
            case Closing():
                return [self._fail(s, refusal.shutting_down(s.handle)) for s in self._sequences()]
            case _:
                assert_never(event)

    # A sequence begins.

    def _arrived(self, event: Arrived) -> list[Decision]:
        self.counters.arrived += 1
        number = self.counters.arrived
        try:
            new = sequence(event.gateway, event.submit, event.trace, number, self.now, self._order)
        except ValueError:
            return [Reply(event.gateway, refusal.bad_frame(event.submit.handle))]
        old = self._live.get((event.gateway, new.handle))
        if old is not None:  # The gateway starts it anew, from a log of its own: its word counts.
            self._drop(old)
        refused = self._refusal(new)
        if refused is not None:
            return [Reply(event.gateway, refused)]
        if new.complete:
            nothing = Tokens(b"", b"", b"", b"", finished={new.handle: "length"})
            self.counters.finished += 1
            return [Reply(event.gateway, nothing)]
        self.counters.prompt_tokens += new.num_prompt
        self._live[event.gateway, new.handle] = new
        self.queue.push(new)
        return []

    def _refusal(self, new: Sequence) -> Failed | None:
        if self.draining:
            return refusal.shutting_down(new.handle)
        if not new.num_prompt:
            return refusal.empty_prompt(new.handle)
        waiting = self.queue.num_tokens + new.num_tokens
        if len(self.queue) < self.limits.max_waiting and waiting <= self.limits.max_waiting_tokens:
            return None
        seconds = refusal.retry_after(self.queue.num_tokens, self.computed.rate)
        return refusal.overloaded(new.handle, seconds)

    # A sequence ends.

    def _aborted(self, event: Aborted) -> list[Decision]:
        for handle in unpack(event.handles, "I"):
            live = self._live.get((event.gateway, handle))
            if live is not None:
                self._drop(live)
        return []

    def _gateway_lost(self, event: GatewayLost) -> list[Decision]:
        for live in self._sequences():
            if live.gateway == event.gateway:
                self._drop(live)
        number = self._numbers.pop(event.gateway, None)
        if number is not None:
            del self._gateways[number]
        return []

    def _drop(self, live: Sequence) -> None:
        """End a sequence without a word, wherever it is."""
        worker = self.fleet.get(live.worker)
        if worker is None:
            self.queue.remove(live)
        else:
            worker.evict(live.slot)
        self._forget(live)

    def _fail(self, live: Sequence, failed: Failed) -> Decision:
        """End a sequence in an error, wherever it is."""
        self._drop(live)
        return Reply(live.gateway, failed)

    def _forget(self, live: Sequence) -> None:
        """A sequence that has left its place ends."""
        live.end()
        del self._live[live.gateway, live.handle]

    # Workers come and go.

    def _worker_joined(self, event: WorkerJoined) -> list[Decision]:
        decisions = self._worker_left(WorkerLeft(event.name)) if event.name in self.fleet else []
        self.fleet.join(event.name, event.epoch, event.info, self.limits.max_batch_tokens)
        return decisions

    def _worker_draining(self, event: WorkerDraining) -> list[Decision]:
        worker = self.fleet.get(event.name)
        if worker is not None:
            worker.draining = True
        return []

    def _worker_left(self, event: WorkerLeft) -> list[Decision]:
        worker = self.fleet.leave(event.name)
        if worker is None:
            return []
        running = worker.batch.occupied()
        self.counters.lost_workers += bool(running) or not worker.draining
        exposed = [bool(worker.batch.entered[slot]) for slot in running]
        lost = [worker.evict(slot) for slot in running]
        return self._rerun(lost, exposed)

    def _rerun(self, lost: list[Sequence], exposed: list[bool]) -> list[Decision]:
        """Back to the queue, where their keys put them in front of all later ones.

        A sequence that a worker had begun each time it failed may be what makes it fail.
        """
        decisions: list[Decision] = []
        for live, blamed in zip(lost, exposed, strict=True):
            live.losses += blamed
            if live.losses < self.limits.max_losses:
                self.queue.push(live)
            else:
                self._forget(live)
                failed = refusal.quarantined(live.handle, live.losses)
                decisions.append(Reply(live.gateway, failed))
        return decisions

    # A step ends.

    def _settled(self, event: Settled) -> list[Decision]:
        worker, result = self.fleet.get(event.worker), event.result
        if worker is None or worker.epoch != result.epoch:
            self.counters.stale_results += 1
            return []
        if all(flight.step != result.step for flight in worker.flights):
            self.counters.stale_results += 1
            return []
        decisions: list[Decision] = []
        while worker.flights[0].step != result.step:  # Results come in order: these are lost.
            decisions += self._abandoned(worker, worker.flights.popleft())
        flight = worker.flights.popleft()
        try:
            outcome = settle(worker, flight, result)
        except WireError:
            self.counters.stale_results += 1
            return decisions + self._abandoned(worker, flight)
        self._count(worker, flight, outcome, result)
        return decisions + self._told(outcome)

    def _abandoned(self, worker: Worker, flight: Flight) -> list[Decision]:
        lost = abandon(worker, flight)
        return self._rerun(lost, [True] * len(lost))

    def _count(self, worker: Worker, flight: Flight, outcome: Outcome, result: Result) -> None:
        worker.note(flight, outcome.num_sampled, result.duration_us, self.now)
        self.computed.add(flight.num_tokens)
        self.sampled.add(outcome.num_sampled)
        self.counters.tokens += outcome.num_sampled
        self.counters.finished += len(outcome.ended)

    def _told(self, outcome: Outcome) -> list[Decision]:
        decisions: list[Decision] = [
            Reply(self._gateways[number], tokens) for number, tokens in outcome.tokens
        ]
        for live in outcome.ended:
            self._forget(live)
        for live, reason in outcome.failed:
            self._forget(live)
            decisions.append(Reply(live.gateway, refusal.broken(live.handle, reason)))
        return decisions + self._rerun(outcome.missing, [True] * len(outcome.missing))

    # Time passes.

    def _tick(self, event: Tick) -> list[Decision]:
        self.now = event.now
        self.sampled.tick(self.now)
        self.computed.tick(self.now)
        decisions = self._give_up() + self._place()
        for worker in self.fleet:
            worker.tokens.tick(self.now)
            decisions += self._planned(worker)
        return decisions

    def _give_up(self) -> list[Decision]:
        """Refuse what has waited too long with nobody there to run it."""
        if self.fleet.open:
            self._alone_since = None
            return []
        if self._alone_since is None:
            self._alone_since = self.now
        patience = self.limits.no_worker_seconds
        if self.now - self._alone_since <= patience:
            return []
        late = [s for s in self.queue if self.now - max(s.since, self._alone_since) > patience]
        return [self._fail(s, refusal.no_worker(s.handle, patience)) for s in late]

    def _place(self) -> list[Decision]:
        """Start waiting sequences strictly in order: nobody overtakes the head of the queue."""
        decisions: list[Decision] = []
        while self.fleet.open and (head := self.queue.head) is not None:
            if not self.fleet.fits(head):
                failed = refusal.too_long(head.handle, head.num_tokens, self.fleet.max_length)
                decisions.append(self._fail(head, failed))
                continue
            worker = self.fleet.pick(head)
            if worker is None:
                break
            self.queue.remove(head)
            worker.place(head, self._number(head.gateway))
        return decisions

    def _number(self, gateway: str) -> int:
        number = self._numbers.get(gateway)
        if number is None:
            number = max(self._gateways, default=0) + 1
            self._numbers[gateway], self._gateways[number] = number, gateway
        return number

    def _planned(self, worker: Worker) -> list[Decision]:
        decisions: list[Decision] = []
        while len(worker.flights) < self.limits.depth:
            message, preempted = plan(worker, self.now)
            self.counters.preemptions += len(preempted)
            for live in preempted:
                self.queue.push(live)
            if message is None:
                break
            decisions.append(Dispatch(worker.name, message))
        return decisions

    # What can be said about the whole.

    def _sequences(self) -> list[Sequence]:
        return list(self._live.values())

    def digest(self) -> bytes:
        """16 bytes that differ whenever a decision could. Logs count by length: their tokens are
        in the decisions, which a recording hashes too."""
        total = blake2b(digest_size=16)
        for part in self._parts():
            total.update(part)
        return total.digest()

    def _parts(self) -> Iterator[bytes]:
        yield repr((self.now, self.draining, self._alone_since, self._numbers)).encode()
        yield repr(astuple(self.counters)).encode()
        yield repr([s.arrival for s in self.queue]).encode()
        for s in self._live.values():
            place = (s.gateway, s.handle, s.key, len(s.log), s.losses, s.worker, s.slot)
            yield repr(place).encode()
        for worker in self.fleet:
            flights = [(flight.step, flight.sent) for flight in worker.flights]
            yield repr((worker.name, worker.epoch, worker.next_step, flights)).encode()
            yield worker.batch.layout()
            yield worker.pool.layout()

    def check(self) -> None:
        """Assert every invariant of the state and of all its parts."""
        for worker in self.fleet:
            worker.check()
        places = [
            worker.batch.at(slot) for worker in self.fleet for slot in worker.batch.occupied()
        ]
        assert all(s.worker is None for s in self.queue)
        together = sorted(s.arrival for s in (*places, *self.queue))
        assert together == sorted(s.arrival for s in self._live.values())
        assert self.queue.num_tokens == sum(s.num_tokens for s in self.queue)
        assert not any(s.ended for s in self._live.values())
