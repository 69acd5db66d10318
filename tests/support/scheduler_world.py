"""Gateways and workers around a `State`, without sockets: every promise is checked on the way."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import msgspec

from baton.kv.page_hashes import PageHashTable
from baton.protocol import (
    AdminReply,
    CacheReset,
    EncodeMedia,
    Failed,
    Grant,
    Media,
    MediaEncoded,
    PageHashes,
    PhaseTimes,
    Plan,
    Pooling,
    Pull,
    Pulled,
    QueueEstimate,
    Result,
    Revoke,
    Sampling,
    Submit,
    Tokens,
    TruncatePlan,
    WorkerCommand,
    WorkerInfo,
)
from baton.protocol.token_columns import pack, unpack
from baton.protocol.vector_columns import split
from baton_scheduler.block_table import NONE
from baton_scheduler.events import (
    Aborted,
    Arrived,
    CacheCleared,
    Cause,
    Clock,
    Decision,
    Dispatch,
    Event,
    GatewayLost,
    MediaSettled,
    Settled,
    Tick,
    Transferred,
    WorkerJoined,
    WorkerLeft,
    WorkerMessage,
)
from baton_scheduler.options import SchedulerOptions
from baton_scheduler.replay.recorder import Recorder
from baton_scheduler.state import State
from baton_worker.engine.plan_queue import PlanQueue
from tests.fakes.hash_worker import (
    FakeEngine,
    expected_tokens,
    vector,
    worker_info,
)


@dataclass
class Request:
    """One sequence as its gateway sees it."""

    prompt: list[int]
    sampling: Sampling
    tokens: list[int] = field(default_factory=list)
    pooling: Pooling | None = None
    vector: bytes | None = None
    end: str | None = None
    failed: Failed | None = None
    cached: int | None = None
    """What was said of the prefix cache."""
    note: QueueEstimate | None = None
    """What came with its first tokens."""
    first_token: float | None = None
    """When its first token came."""
    born: float = 0.0
    """When it arrived."""
    times: PhaseTimes | None = None
    """Where its time went, once it has ended."""

    @cached_property
    def expected(self) -> tuple[list[int], str]:
        """Its whole log and its finish reason, if the context is long enough."""
        return expected_tokens(self.prompt, self.sampling)


@dataclass
class Peer:
    """One worker: what is on the way to it, plans that it has, results on the way back."""

    engine: FakeEngine
    epoch: int
    inbox: deque[Plan | TruncatePlan] = field(default_factory=deque)
    names: deque[PageHashes] = field(default_factory=deque)
    """These too: they arrive with the next of the others, at the latest."""
    held: PageHashTable = field(default_factory=PageHashTable)
    plans: PlanQueue = field(default_factory=PlanQueue)
    sent: list[Plan] = field(default_factory=list)
    """Every plan that it was sent."""
    results: deque[Result] = field(default_factory=deque)
    grants: dict[int, Grant] = field(default_factory=dict)
    pulls: deque[Pull] = field(default_factory=deque)
    commands: deque[WorkerCommand] = field(default_factory=deque)
    """Those that nobody has answered."""
    behind: dict[int, int] = field(default_factory=dict)
    """By pull, how many plans were sent before it: those run first."""


@dataclass
class EncodePeer:
    """One encode worker: what it was told to encode, and what can be pulled from it."""

    epoch: int
    orders: deque[EncodeMedia] = field(default_factory=deque)
    offered: dict[int, EncodeMedia] = field(default_factory=dict)
    revoked: set[int] = field(default_factory=set)


class World:
    """Drives a state by events and keeps the books of both sides."""

    def __init__(self, limits: SchedulerOptions | None = None, *, max_steps: int = 1) -> None:
        self.state = State(
            msgspec.structs.replace(limits or SchedulerOptions(), max_steps_per_plan=max_steps)
        )
        self.requests: dict[tuple[str, int], Request] = {}
        self.peers: dict[str, Peer] = {}
        self.encoders: dict[str, EncodePeer] = {}
        self.media_pulls: dict[str, deque[Pull]] = {}
        """Pulls of embeddings that each worker was told to make."""
        self.encoded: list[bytes] = []
        """Keys of media, in the order in which encode workers have encoded them."""
        self.late: list[Settled] = []
        """Results that were delivered already, or whose worker has gone since."""
        self.plans: list[Plan] = []
        """Every plan that was ever sent."""
        self.cleared: list[CacheReset] = []
        """Answers to `clear_cache`."""
        self.admin: list[AdminReply] = []
        """Answers to commands of operators."""
        self.cuts = 0
        """How many plans were told to end early."""
        self.now = 0.0
        self._handles = 0
        self._epochs = 0

    def apply(self, event: Event) -> list[Decision]:
        """Apply one event and hand its decisions out."""
        decisions = self.state.apply(event)
        for decision in decisions:
            if isinstance(decision, Dispatch):
                self._dispatch(decision)
            elif isinstance(decision, WorkerMessage):
                self._tell_worker(decision.worker, decision.message)
            elif isinstance(decision.message, Tokens):
                self._receive(decision.gateway, decision.message)
            elif isinstance(decision.message, CacheReset):
                self.cleared.append(decision.message)
            elif isinstance(decision.message, AdminReply):
                self.admin.append(decision.message)
            else:
                self._fail(decision.gateway, decision.message)
        self.state.check()
        return decisions

    def _dispatch(self, decision: Dispatch) -> None:
        peer, plan = self.peers[decision.worker], decision.message
        assert plan.epoch == peer.epoch
        budget = min(
            self.state.options.max_num_batched_tokens, peer.engine.info.max_num_batched_tokens
        )
        assert sum(unpack(plan.num_scheduled, "I")) <= budget
        peer.inbox.append(plan)
        peer.sent.append(plan)
        waiting = sum(isinstance(message, Plan) for message in peer.inbox) + len(peer.plans)
        if self.state.options.max_steps_per_plan == 1:
            waiting += len(peer.results)
        most = max(self.state.options.plans_in_flight, peer.engine.info.pipeline_stages)
        assert waiting <= most
        self.plans.append(plan)

    def _tell_worker(self, name: str, message: Any) -> None:
        encoder = self.encoders.get(name)
        if isinstance(message, Pull) and message.digest:
            self.media_pulls.setdefault(name, deque()).append(message)
        elif encoder is None:
            self._tell(self.peers[name], message)
        elif isinstance(message, EncodeMedia):
            assert message.epoch == encoder.epoch
            encoder.orders.append(message)
        else:
            assert isinstance(message, Revoke)
            for number in unpack(message.ids, "Q"):
                encoder.offered.pop(number, None)
                encoder.revoked.add(number)

    def _tell(
        self,
        peer: Peer,
        message: Grant | Revoke | Pull | TruncatePlan | PageHashes | WorkerCommand,
    ) -> None:
        assert message.epoch == peer.epoch
        if isinstance(message, PageHashes):
            peer.names.append(message)
        elif isinstance(message, TruncatePlan):
            peer.inbox.append(message)
            self.cuts += 1
        elif isinstance(message, WorkerCommand):
            peer.commands.append(message)
        elif isinstance(message, Grant):
            peer.grants[message.id] = message
        elif isinstance(message, Pull):
            peer.pulls.append(message)
            peer.behind[message.id] = len(peer.sent)
        else:
            for number in unpack(message.ids, "Q"):
                del peer.grants[number]

    def _receive(self, gateway: str, message: Tokens) -> None:
        tokens = iter(unpack(message.tokens))
        columns = (unpack(message.handles, "I"), unpack(message.first, "I"), message.counts)
        for handle, first, count in zip(*columns, strict=True):
            request = self.requests[gateway, handle]
            assert request.end is None, "a token after the end"
            assert first == len(request.tokens), "a token is skipped or repeated"
            request.tokens += [next(tokens) for _ in range(count)]
            expected, _ = request.expected
            assert request.tokens == expected[: len(request.tokens)], "a foreign token"
            request.first_token = self.now if request.first_token is None else request.first_token
            assert request.note is not None or handle in message.estimates
        assert next(tokens, None) is None
        for handle, cached in message.cached.items():
            request = self.requests[gateway, handle]
            assert request.cached is None, "the cache is spoken of twice"
            assert 0 < cached <= len(request.prompt)
            request.cached = cached
        for handle, note in message.estimates.items():
            assert self.requests[gateway, handle].note is None, "a note comes twice"
            self.requests[gateway, handle].note = note
        for handle, values in split(message.pooled).items():
            assert self.requests[gateway, handle].vector is None, "a second vector"
            self.requests[gateway, handle].vector = values
        for handle, times in message.phase_times.items():
            self._account(self.requests[gateway, handle], times)
        for handle, reason in message.finished.items():
            self._finish(self.requests[gateway, handle], reason)
            assert handle in message.phase_times, "nothing is said of where its time went"

    def _account(self, request: Request, times: PhaseTimes) -> None:
        """Every moment of its life is in exactly one of the six."""
        assert request.times is None, "its time is accounted for twice"
        request.times = times
        seconds = (
            *(times.queued, times.prefill, times.decode),
            *(times.preempted, times.worker_loss, times.handover),
        )
        assert min(seconds) >= 0
        assert abs(sum(seconds) - (self.now - request.born)) < 1e-9
        assert times.preempted == 0 or times.preemptions
        assert times.worker_loss == 0 or times.losses
        assert times.handover == 0 or times.handovers

    def _finish(self, request: Request, reason: str) -> None:
        assert request.end is None, "a second end"
        request.end = reason
        if request.pooling is not None:
            assert reason == "stop" and request.vector == vector(pack(request.prompt))
            return
        expected, why = request.expected
        if len(request.tokens) == len(expected):
            assert reason == why
        else:  # The context was full before the answer was.
            assert reason == "length"
            lengths = [worker.max_model_len for worker in self.state.fleet]
            assert len(request.prompt) + len(request.tokens) in lengths

    def _fail(self, gateway: str, failed: Failed) -> None:
        request = self.requests[gateway, failed.handle]
        assert request.end is None, "a second end"
        request.end, request.failed = "failed", failed
        if failed.phase_times is not None:
            self._account(request, failed.phase_times)

    # What happens.

    def submit(
        self,
        prompt: list[int],
        sampling: Sampling,
        gateway: str = "g",
        *,
        tenant: str = "",
        salt: bytes = b"",
        priority: int = 0,
        deadline_ms: int = 0,
        name: str = "",
        report: bool = False,
        pooling: Pooling | None = None,
        model: str = "",
        adapter: bytes = b"",
        media: tuple[Media, ...] = (),
    ) -> Request:
        """A gateway submits; choices of one request have the same `name`."""
        self._handles += 1
        request = Request(prompt, sampling, pooling=pooling, born=self.now)
        self.requests[gateway, self._handles] = request
        submit = Submit(
            self._handles,
            name or f"request-{self._handles}",
            pack(prompt),
            sampling,
            adapter=adapter,
            tenant=tenant,
            salt=salt,
            priority=priority,
            explain=report,
            pooling=pooling,
            model=model,
            media=media,
        )
        self.apply(Arrived(gateway, submit, deadline_ms=deadline_ms))
        return request

    def choices(
        self, prompt: list[int], samplings: list[Sampling], gateway: str = "g", tenant: str = ""
    ) -> list[Request]:
        """A gateway submits the choices of one request."""
        name = f"choices-{self._handles}"
        return [self.submit(prompt, s, gateway, tenant=tenant, name=name) for s in samplings]

    def clear_cache(self, gateway: str = "g") -> int:
        """A gateway asks to reset the prefix cache. Returns how many pages it held."""
        self.apply(CacheCleared(gateway, len(self.cleared)))
        answer = self.cleared[-1]
        assert answer.id == len(self.cleared) - 1
        return answer.pages

    def abort(self, gateway: str, handle: int) -> None:
        """A gateway aborts; from now on it wants to hear nothing of it."""
        self.apply(Aborted(gateway, pack([handle], "I")))
        self._silence(gateway, handle)

    def _silence(self, gateway: str, handle: int) -> None:
        request = self.requests[gateway, handle]
        request.end = request.end or "abort"

    def lose_gateway(self, gateway: str) -> None:
        """A gateway dies."""
        self.apply(GatewayLost(gateway))
        for name, handle in self.requests:
            if name == gateway:
                self._silence(name, handle)

    def join(self, name: str = "w", info: WorkerInfo | None = None, fail_on: int = -1) -> Peer:
        """A worker joins, empty."""
        self.lose_worker(name, tell=False)
        self._epochs += 1
        engine = FakeEngine(info or worker_info(), fail_on=fail_on)
        peer = self.peers[name] = Peer(engine, self._epochs)
        self.apply(WorkerJoined(name, peer.epoch, engine.info))
        return peer

    def hurry(self, name: str = "w") -> None:
        """All that was sent to a worker arrives."""
        _arrive(self.peers[name], 0)
        _learn(self.peers[name])

    def rejoin(self, name: str = "w") -> Peer:
        """A worker and the scheduler have lost touch: what was on the way is gone, but its pages
        hold what they held."""
        old = self.peers.pop(name)
        self.late += [Settled(name, result) for result in old.results]
        self._epochs += 1
        engine = FakeEngine(old.engine.info, fail_on=old.engine.fail_on)
        engine.cache = old.engine.cache
        peer = self.peers[name] = Peer(engine, self._epochs, held=old.held)
        self.apply(WorkerJoined(name, peer.epoch, engine.info, peer.held.held()))
        return peer

    def lose_worker(self, name: str = "w", tell: bool = True, cause: Cause = "outside") -> None:
        """A worker is gone, with what it was sent; its last results may still arrive."""
        peer = self.peers.pop(name, None)
        if peer is not None:
            self.late += [Settled(name, result) for result in peer.results]
            if tell:
                self.apply(WorkerLeft(name, cause))

    def join_encoder(self, name: str = "e", layout: str = "f32") -> None:
        """An encode worker joins."""
        self._epochs += 1
        self.encoders[name] = EncodePeer(self._epochs)
        address = f"tcp://{name}"
        info = WorkerInfo(
            "fake", 0, 0, 0, 0, 0, 0, role="encode", kv_address=address, encoder_layout=layout
        )
        self.apply(WorkerJoined(name, self._epochs, info))

    def lose_encoder(self, name: str = "e", cause: Cause = "outside") -> None:
        """An encode worker is gone, with what it was told."""
        del self.encoders[name]
        self.apply(WorkerLeft(name, cause))

    def encode(
        self, name: str = "e", refused: str = "", seconds: float = 0.1, *, missing: bool = False
    ) -> bool:
        """An encode worker answers its next order. False when it has none."""
        peer = self.encoders[name]
        if not peer.orders:
            return False
        order = peer.orders.popleft()
        if order.id in peer.revoked:
            self.apply(MediaSettled(name, MediaEncoded(order.epoch, order.id, "it was revoked")))
            return True
        done = MediaEncoded(order.epoch, order.id, refused, unavailable=missing)
        if not (refused or missing):
            self.encoded.append(order.item.digest)
            peer.offered[order.id] = order
            count = order.item.length
            done = MediaEncoded(order.epoch, order.id, "", count, 8 * count, int(seconds * 1e6))
        self.apply(MediaSettled(name, done))
        return True

    def pull_media(self, name: str = "w", reason: str = "") -> bool:
        """A worker ends its next pull of embeddings. False when it has none."""
        if not self.media_pulls.get(name):
            return False
        pull = self.media_pulls[name].popleft()
        source = self.encoders.get(pull.address.removeprefix("tcp://"))
        order = source.offered.get(pull.id) if source is not None else None
        if source is None or order is None:
            reason = reason or "the source is gone"
        elif not reason:
            assert (order.token, order.epoch) == (pull.token, pull.source_epoch)
            assert (order.item.digest, order.item.length) == (pull.digest, pull.end)
        pulled = Pulled(pull.epoch, pull.id, reason, 8 * pull.end, 1000, "shm", pull.digest)
        self.apply(Transferred(name, pulled))
        return True

    def tick(self, seconds: float = 0.01) -> None:
        """Time passes."""
        self.now += seconds
        self.apply(Tick(self.now))

    def hear(self, seconds: float = 0.01) -> None:
        """Time passes, and nothing is decided yet."""
        self.now += seconds
        self.apply(Clock(self.now))

    def run(self, name: str = "w", late: int = 0, during: int = 0) -> bool:
        """A worker executes its next step. False when it has none.

        Of the messages on the way to it, the last `late` arrive after the step's result is sent,
        and `during` more while the step runs.
        """
        peer = self.peers[name]
        _arrive(peer, late + during if peer.plans else 0)
        if not peer.plans:
            return False
        result = peer.engine.step(*peer.plans.first)
        peer.plans.advance()
        _arrive(peer, late)
        peer.results.append(peer.plans.with_truncation(result))
        return True

    def deliver(self, name: str = "w") -> bool:
        """A worker's next result arrives. False when there is none."""
        peer = self.peers[name]
        if not peer.results:
            return False
        settled = Settled(name, peer.results.popleft())
        self.late.append(settled)
        self.apply(settled)
        return True

    def pull(self, name: str = "w", reason: str = "") -> bool:
        """A worker ends its next pull, for this reason if it fails. False when it has none."""
        peer = self.peers[name]
        if not peer.pulls:
            return False
        pull = peer.pulls.popleft()
        _learn(peer)
        while peer.plans.ended < peer.behind[pull.id]:
            assert self.run(name)
        source = next((p for n, p in self.peers.items() if n == pull.address), None)
        grant = source.grants.get(pull.id) if source is not None else None
        if source is None or grant is None:
            reason = reason or "the source is gone"
        elif not reason:
            assert (grant.token, grant.epoch) == (pull.token, pull.source_epoch)
            assert pull.end <= grant.length
            _copy(source.engine, grant, peer.engine, pull)
        self.apply(Transferred(name, Pulled(pull.epoch, pull.id, reason)))
        return True

    def round(self) -> None:
        """Every worker does a step, and its result arrives."""
        self.tick()
        for name in list(self.encoders):
            self.encode(name)
        for name in list(self.peers):
            self.pull_media(name)
            self.run(name)
            self.pull(name)
            self.deliver(name)

    def finish(self, rounds: int = 5_000) -> None:
        """Go on until nothing is alive."""
        for _ in range(rounds):
            if self.state.idle:
                return
            self.round()
        raise AssertionError("the state does not come to an end")


def _copy(source: FakeEngine, grant: Grant, target: FakeEngine, pull: Pull) -> None:
    """Keys of these tokens, from the pages of one worker to those of another, group by group."""
    groups = len(source.windows)
    own, size = unpack(pull.pages, "I"), target.info.page_size
    pages, page_size = unpack(grant.pages, "I"), source.info.page_size
    assert len(own) == groups * -(-pull.end // size)
    assert len(pages) == groups * -(-grant.length // page_size)
    for group, position in product(range(groups), range(pull.start, pull.end)):
        mine = own[group * len(own) // groups + position // size]
        if mine == NONE:
            continue
        page = pages[group * len(pages) // groups + position // page_size]
        content = target.cache.setdefault(mine, [b""] * size)
        content[position % size] = source.cache[page][position % page_size]


def _arrive(peer: Peer, late: int) -> None:
    while len(peer.inbox) > late:
        message = peer.inbox.popleft()
        _learn(peer)
        if isinstance(message, Plan):
            peer.plans.add(message)
        else:
            peer.plans.truncate(message.step)


def _learn(peer: Peer) -> None:
    while peer.names:
        peer.held.update(peer.names.popleft())


class Recorded(World):
    """A world whose every event is recorded."""

    def __init__(self, path: Path, limits: SchedulerOptions, max_bytes: int = 10**8) -> None:
        super().__init__(limits, max_steps=limits.max_steps_per_plan)
        self.recorder = Recorder(path, limits, max_bytes)

    def apply(self, event: Event) -> list[Decision]:
        decisions = super().apply(event)
        self.recorder.note(event, decisions, self.state)
        return decisions


def failure(request: Request) -> Failed:
    """The error that a request ended with."""
    failed = request.failed
    assert isinstance(failed, Failed)
    return failed
