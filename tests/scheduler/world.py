"""Gateways and workers around a `State`, without sockets: every promise is checked on the way."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from baton.protocol import CacheReset, Failed, Plan, Result, Sampling, Submit, Tokens, WorkerInfo
from baton.tokens import pack, unpack
from baton_scheduler.events import (
    Aborted,
    Arrived,
    CacheCleared,
    Decision,
    Dispatch,
    Event,
    GatewayLost,
    Settled,
    Tick,
    WorkerJoined,
    WorkerLeft,
)
from baton_scheduler.limits import Limits
from baton_scheduler.recorder import Recorder
from baton_scheduler.state import State
from tests.fakes.worker import FakeEngine, expected_tokens, worker_info


@dataclass
class Request:
    """One sequence as its gateway sees it."""

    prompt: list[int]
    sampling: Sampling
    tokens: list[int] = field(default_factory=list)
    end: str | None = None
    failed: Failed | None = None
    cached: int | None = None
    """What was said of the prefix cache."""
    first_token: float | None = None
    """When its first token came."""


@dataclass
class Peer:
    """One worker: plans on the way to it, results on the way back."""

    engine: FakeEngine
    epoch: int
    plans: deque[Plan] = field(default_factory=deque)
    results: deque[Result] = field(default_factory=deque)


class World:
    """Drives a state by events and keeps the books of both sides."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.state = State(limits or Limits())
        self.requests: dict[tuple[str, int], Request] = {}
        self.peers: dict[str, Peer] = {}
        self.late: list[Settled] = []
        """Results that were delivered already, or whose worker has gone since."""
        self.plans: list[Plan] = []
        """Every plan that was ever sent."""
        self.cleared: list[CacheReset] = []
        """Answers to `clear_cache`."""
        self.now = 0.0
        self._handles = 0
        self._epochs = 0

    def apply(self, event: Event) -> list[Decision]:
        """Apply one event and hand its decisions out."""
        decisions = self.state.apply(event)
        for decision in decisions:
            if isinstance(decision, Dispatch):
                self._dispatch(decision)
            elif isinstance(decision.message, Tokens):
                self._receive(decision.gateway, decision.message)
            elif isinstance(decision.message, CacheReset):
                self.cleared.append(decision.message)
            else:
                self._fail(decision.gateway, decision.message)
        self.state.check()
        return decisions

    def _dispatch(self, decision: Dispatch) -> None:
        peer, plan = self.peers[decision.worker], decision.message
        assert plan.epoch == peer.epoch
        budget = min(self.state.limits.max_batch_tokens, peer.engine.info.max_batch_tokens)
        assert sum(unpack(plan.counts, "I")) <= budget
        peer.plans.append(plan)
        assert len(peer.plans) + len(peer.results) <= self.state.limits.depth
        self.plans.append(plan)

    def _receive(self, gateway: str, message: Tokens) -> None:
        tokens = iter(unpack(message.tokens))
        columns = (unpack(message.handles, "I"), unpack(message.first, "I"), message.counts)
        for handle, first, count in zip(*columns, strict=True):
            request = self.requests[gateway, handle]
            assert request.end is None, "a token after the end"
            assert first == len(request.tokens), "a token is skipped or repeated"
            request.tokens += [next(tokens) for _ in range(count)]
            expected, _ = expected_tokens(request.prompt, request.sampling)
            assert request.tokens == expected[: len(request.tokens)], "a foreign token"
            request.first_token = self.now if request.first_token is None else request.first_token
        assert next(tokens, None) is None
        for handle, cached in message.cached.items():
            request = self.requests[gateway, handle]
            assert request.cached is None, "the cache is spoken of twice"
            assert 0 < cached <= len(request.prompt)
            request.cached = cached
        for handle, reason in message.finished.items():
            self._finish(self.requests[gateway, handle], reason)

    def _finish(self, request: Request, reason: str) -> None:
        assert request.end is None, "a second end"
        request.end = reason
        expected, why = expected_tokens(request.prompt, request.sampling)
        if len(request.tokens) == len(expected):
            assert reason == why
        else:  # The context was full before the answer was.
            assert reason == "length"
            lengths = [peer.engine.info.max_length for peer in self.peers.values()]
            pages = [p.engine.info.num_pages * p.engine.info.page_size for p in self.peers.values()]
            assert len(request.prompt) + len(request.tokens) in {*lengths, *pages}

    def _fail(self, gateway: str, failed: Failed) -> None:
        request = self.requests[gateway, failed.handle]
        assert request.end is None, "a second end"
        request.end, request.failed = "failed", failed

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
    ) -> Request:
        """A gateway submits."""
        self._handles += 1
        request = self.requests[gateway, self._handles] = Request(prompt, sampling)
        submit = Submit(
            self._handles,
            f"request-{self._handles}",
            pack(prompt),
            sampling,
            tenant=tenant,
            salt=salt,
            priority=priority,
        )
        self.apply(Arrived(gateway, submit, deadline_ms=deadline_ms))
        return request

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

    def lose_worker(self, name: str = "w", tell: bool = True) -> None:
        """A worker is gone, with what it was sent; its last results may still arrive."""
        peer = self.peers.pop(name, None)
        if peer is not None:
            self.late += [Settled(name, result) for result in peer.results]
            if tell:
                self.apply(WorkerLeft(name))

    def tick(self, seconds: float = 0.01) -> None:
        """Time passes."""
        self.now += seconds
        self.apply(Tick(self.now))

    def run(self, name: str = "w") -> bool:
        """A worker executes its next plan. False when it has none."""
        peer = self.peers[name]
        if not peer.plans:
            return False
        peer.results.append(peer.engine.step(peer.plans.popleft()))
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

    def round(self) -> None:
        """Every worker does a step, and its result arrives."""
        self.tick()
        for name in list(self.peers):
            self.run(name)
            self.deliver(name)

    def finish(self, rounds: int = 5_000) -> None:
        """Go on until nothing is alive."""
        for _ in range(rounds):
            if self.state.idle:
                return
            self.round()
        raise AssertionError("the state does not come to an end")


class Recorded(World):
    """A world whose every event is recorded."""

    def __init__(self, path: Path, limits: Limits, max_bytes: int = 10**8) -> None:
        super().__init__(limits)
        self.recorder = Recorder(path, limits, max_bytes)

    def apply(self, event: Event) -> list[Decision]:
        decisions = super().apply(event)
        self.recorder.note(event, decisions, self.state)
        return decisions
