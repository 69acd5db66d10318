"""The scheduler's main loop: receive from both sockets, apply events, send decisions."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass

from baton import __version__
from baton.errors import WireError
from baton.kv.page_hashes import split_hashes
from baton.logs import logger
from baton.net.curve import own_keys
from baton.net.discovery import Directory, bind_address, directory
from baton.net.handshake import (
    BEAT_SECONDS,
    LOST_SECONDS,
    QUIET_SECONDS,
    Peer,
    Roster,
    check_version,
    incarnation,
)
from baton.net.sockets import Received, Server, wait
from baton.net.topology import FLEET, FRONTEND, Link
from baton.process import gc_tuning, standby
from baton.process.lifecycle import Lifecycle, default_name
from baton.process.watchdog import pulse
from baton.protocol import (
    Abort,
    Beat,
    Drain,
    DrainWorker,
    HeldPages,
    Hello,
    HelloRequest,
    Pulled,
    ResetCache,
    Result,
    SetRole,
    Stats,
    Submit,
    WorkerInfo,
)
from baton_scheduler.config import Config
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
    Settled,
    Tell,
    Tick,
    Transferred,
    WorkerAssigned,
    WorkerDraining,
    WorkerJoined,
    WorkerLeft,
)
from baton_scheduler.observability.autoscaling import Targets
from baton_scheduler.observability.spans import Spans
from baton_scheduler.observability.stats import stats
from baton_scheduler.options import SchedulerOptions
from baton_scheduler.replay.recorder import Recorder
from baton_scheduler.state import State

_IDLE_SECONDS = 0.05
"""Maximum wait for a message; bounds the delay in noticing lost peers and signals."""
_STATS_SECONDS = 0.25
_MOST_REFUSED = 1000
_MOST_PAGES = 2**28
"""Maximum number of pages that a worker may report, since the state keeps data for each."""
_MOST_ROWS = 2**16

log = logger(__name__)


@dataclass
class _Hung:
    """A hung worker that was removed, but still sends heartbeats."""

    info: WorkerInfo
    heard: float


class Service:
    """Feeds events to the state machine and sends its decisions.

    A worker that was given up, after silence or a hang, is unknown from then on: its heartbeats are
    answered with `HelloRequest` until it sends a `Hello` with a new epoch.
    """

    def __init__(
        self, config: Config, frontend: Server, fleet: Server, clock: Callable[[], float]
    ) -> None:
        limits = SchedulerOptions.of(config)
        self.state = State(limits)
        self._clock, self._config = clock, config
        self._targets = Targets(config.target_ttft_ms / 1000, config.target_itl_ms / 1000)
        self._frontend, self._fleet = frontend, fleet
        me = Hello("scheduler", default_name("scheduler"), incarnation(), __version__)
        self._gateways, self._workers = Roster(me), Roster(me)
        self._senders: dict[bytes, str] = {}
        """Socket identity -> gateway name."""
        self._hung: dict[str, _Hung] = {}
        self._refused: set[int] = set()
        self._apart = False
        """It was logged that some workers cannot transfer KV to each other."""
        self._spans = Spans()
        self._recorder: Recorder | None = None
        if config.event_log is not None:
            self._recorder = Recorder(config.event_log, limits, config.event_log_max_bytes)
        self._started = clock()
        self._next_stats = self._next_look = 0.0

    def run(self, life: Lifecycle) -> int:
        """Serve until the process should end. Returns the exit code."""
        while not life.over(self.state.idle):
            pulse.beat()
            wait((self._frontend, self._fleet), _IDLE_SECONDS)
            self.turn(draining=life.draining)
        self.close()
        return 0

    def turn(self, *, draining: bool = False) -> None:
        """One iteration: receive messages, detect lost peers, then decide and send."""
        if draining and not self.state.draining:
            log.info("draining: %d sequences to finish", self.state.num_running)
            self._apply(Draining())
        self._apply(Clock(self._clock()))
        for received in self._frontend.drain():
            self._hear_gateway(received)
        for received in self._fleet.drain():
            self._hear_worker(received)
        now = self._clock()
        self._expire(now)
        self._apply(Tick(now))
        self._tell(now)

    def close(self) -> None:
        """End every live sequence with an error message, and finish the recording."""
        self._apply(Closing())
        if self._recorder is not None:
            self._recorder.close()

    def _apply(self, event: Event) -> None:
        decisions = self.state.apply(event)
        if self._recorder is not None:
            self._recorder.note(event, decisions, self.state)
        for decision in decisions:
            self._send(decision)

    def _send(self, decision: Decision) -> None:
        """Send a decision; if that fails, treat the receiver as lost."""
        if isinstance(decision, Dispatch | Tell):
            if isinstance(decision, Dispatch):
                self._spans.started(decision.message.new_sequences)
            worker = self._workers.peers.get(decision.worker)
            if worker is not None and not self._fleet.send(worker.identity, decision.message):
                self._give_up(worker, "it cannot be reached")
        else:
            gateway = self._gateways.peers.get(decision.gateway)
            if gateway is not None and not self._frontend.send(gateway.identity, decision.message):
                self._forget(gateway)

    # Gateways.

    def _hear_gateway(self, received: Received) -> None:
        message, peer = received.message, received.peer
        if isinstance(message, Hello):
            self._greet_gateway(peer, message)
        elif isinstance(message, Beat):
            self._frontend.send(peer, self._gateways.beat(message, self._clock()))
        elif (name := self._senders.get(peer)) is None:
            self._frontend.dropped += 1
            self._frontend.send(peer, HelloRequest(self._gateways.me.incarnation))
        elif isinstance(message, Submit):
            self._spans.arrived(received.envelope.trace)
            envelope = received.envelope
            self._apply(Arrived(name, message, envelope.trace, envelope.deadline_ms))
        elif isinstance(message, Abort):
            self._abort(name, message)
        elif isinstance(message, ResetCache):
            self._apply(CacheCleared(name, message.id))

    def _greet_gateway(self, peer: bytes, hello: Hello) -> None:
        reason = _mismatch(hello)
        if reason:
            self._refuse(hello, reason)
            return
        old = self._gateways.greet(peer, hello, self._clock())
        if old is not None:
            self._forget(old)
        self._senders[peer] = hello.name
        self._frontend.send(peer, self._gateways.me)

    def _abort(self, name: str, message: Abort) -> None:
        if len(message.handles) % 4:
            self._frontend.dropped += 1
            log.warning("dropped an Abort of %s: its column is cut off", name)
        else:
            self._apply(Aborted(name, message.handles))

    def _forget(self, gateway: Peer) -> None:
        """Drop a gateway that is gone."""
        name = gateway.hello.name
        if self._gateways.peers.get(name) is gateway:
            del self._gateways.peers[name]
        self._senders = {peer: n for peer, n in self._senders.items() if n != name}
        log.warning("gateway %s is lost: its sequences end", name)
        self._apply(GatewayLost(name))

    # Workers.

    def _hear_worker(self, received: Received) -> None:
        message, peer = received.message, received.peer
        if isinstance(message, Hello) and message.service == "health":
            self._fleet.send(peer, self._snapshot(self._clock()))
        elif isinstance(message, DrainWorker):
            self._retire(message.name)
        elif isinstance(message, SetRole):
            self._assign(message)
        elif isinstance(message, Hello):
            self._greet_worker(peer, message)
        elif isinstance(message, Beat):
            self._beat_worker(peer, message)
        elif (name := self._worker_at(peer)) is None:
            self._fleet.dropped += 1
            self._fleet.send(peer, HelloRequest(self._workers.me.incarnation))
        elif isinstance(message, Result):
            self._apply(Settled(name, message))
        elif isinstance(message, Pulled):
            self._apply(Transferred(name, message))
        elif isinstance(message, Drain):
            log.info("worker %s drains", name)
            self._apply(WorkerDraining(name))

    def _worker_at(self, peer: bytes) -> str | None:
        return next((n for n, p in self._workers.peers.items() if p.identity == peer), None)

    def _retire(self, name: str) -> None:
        worker = self._workers.peers.get(name)
        if worker is not None:
            log.info("worker %s is told to drain", name)
            self._fleet.send(worker.identity, Drain())
            self._apply(WorkerDraining(name))

    def _assign(self, order: SetRole) -> None:
        worker = self._workers.peers.get(order.name)
        if worker is not None:
            log.info("worker %s is given the role %s", order.name, order.role)
            self._fleet.send(worker.identity, order)
            self._apply(WorkerAssigned(order.name, order.role))

    def _greet_worker(self, peer: bytes, hello: Hello) -> None:
        reason = _mismatch(hello) or self._objection(hello)
        if reason:
            self._refuse(hello, reason)
            return
        name, info = hello.name, hello.worker
        known = self._workers.peers.get(name)
        self._workers.greet(peer, hello, self._clock())
        self._fleet.send(peer, self._workers.me)
        if info is None or (known and known.hello.incarnation == hello.incarnation):
            return
        self._hung.pop(name, None)
        log.info("worker %s joined", name)
        self._compare(name, info)
        self._next_stats = 0.0  # Gateways may be waiting for statistics.
        self._apply(WorkerJoined(name, hello.incarnation, info, hello.held))

    def _compare(self, name: str, info: WorkerInfo) -> None:
        """Log once that a joining worker cannot transfer KV to or from another one."""
        mates = self.state.fleet.serving(info.model)
        layouts = {w.name: w.info.kv_layout for w in mates if w.info.kv_address}
        other = next((n for n, layout in layouts.items() if layout != info.kv_layout), None)
        if self._apart or other is None or not info.kv_address:
            return
        self._apart = True
        log.warning(
            "no keys pass between the workers %s (%s) and %s (%s): what moves is computed again",
            *(other, layouts[other], name, info.kv_layout),
        )

    def _objection(self, hello: Hello) -> str:
        """Reason for refusing a worker; empty if it is accepted."""
        if hello.worker is None:
            return "it does not say what it can do"
        if not _sensible(hello.worker):
            return "its sizes are not positive, or too large"
        if not _can_hold(hello.worker, hello.held):
            return "it cannot have the pages that it says it holds"
        if self.state.fleet.refuses(hello.name, hello.incarnation):
            return "this epoch was given up"
        if not hello.worker.model:
            return "it does not name its model"
        return self._disagreement(hello.name, hello.worker)

    def _disagreement(self, name: str, info: WorkerInfo) -> str:
        """How the worker differs from others that serve its model; empty if it does not."""
        for other in self.state.fleet.serving(info.model):
            size = other.info.vocab_size
            if other.name != name and size != info.vocab_size:
                return f"{info.model} has {info.vocab_size} tokens here, {size} on {other.name}"
        return ""

    def _beat_worker(self, peer: bytes, beat: Beat) -> None:
        now = self._clock()
        if beat.name in self._hung:
            self._hung[beat.name].heard = now
        self._fleet.send(peer, self._workers.beat(beat, now))

    def _give_up(self, worker: Peer, why: str) -> None:
        """Remove a worker and all workers of its expert group, which fail with it."""
        mates = self._mates(worker)
        self._leave(worker, why)
        for mate in mates:
            self._leave(mate, f"it ends with {worker.hello.name}")

    def _mates(self, worker: Peer) -> list[Peer]:
        info = worker.hello.worker
        if info is None or not info.expert_group:
            return []
        others = (peer for peer in self._workers.peers.values() if peer is not worker)
        return [
            o for o in others if o.hello.worker and o.hello.worker.expert_group == info.expert_group
        ]

    def _leave(self, worker: Peer, why: str) -> None:
        name = worker.hello.name
        if self._workers.peers.get(name) is worker:
            del self._workers.peers[name]
        log.warning("worker %s is lost: %s; its sequences go back to the queue", name, why)
        self._apply(WorkerLeft(name))

    # Both.

    def _refuse(self, hello: Hello, reason: str) -> None:
        """Leave a `Hello` unanswered. It is repeated, so the reason is logged once."""
        if hello.incarnation not in self._refused and len(self._refused) < _MOST_REFUSED:
            self._refused.add(hello.incarnation)
            log.error("%s may not join: %s", hello.name, reason)

    def _expire(self, now: float) -> None:
        """Remove silent and hung peers, at the rate of heartbeats rather than every iteration."""
        if now < self._next_look:
            return
        self._next_look = now + BEAT_SECONDS
        for gateway in self._gateways.expire(now, QUIET_SECONDS):
            self._forget(gateway)
        for worker in self._workers.expire(now):
            self._give_up(worker, "it has gone silent")
        self._probe()
        for worker in list(self._workers.peers.values()):
            if self._hangs(worker, now):
                hung = self.state.fleet.get(worker.hello.name)
                assert hung is not None
                self._hung[worker.hello.name] = _Hung(hung.info, now)
                self._give_up(worker, "it owes a result and does not advance")
        self._hung = {n: h for n, h in self._hung.items() if now - h.heard <= LOST_SECONDS}

    def _probe(self) -> None:
        """Detect workers whose process is gone, without waiting for their silence to time out."""
        me = self._workers.me
        beat = Beat(me.name, me.incarnation)
        peers = self._workers.peers
        gone = [w for w in peers.values() if not self._fleet.send(w.identity, beat)]
        for worker in gone:
            if peers.get(worker.hello.name) is worker:  # It was not removed with another one.
                self._give_up(worker, "its connection is gone")

    def _hangs(self, peer: Peer, now: float) -> bool:
        """True if a worker owes a result and makes no progress, or does not know of the plan."""
        worker = self.state.fleet.get(peer.hello.name)
        since = worker.waiting_since if worker is not None else None
        if since is None or now - since <= self._config.worker_hang_seconds:
            return False
        return not peer.busy or now - peer.progressed > self._config.worker_hang_seconds

    def _tell(self, now: float) -> None:
        if now < self._next_stats:
            return
        self._next_stats = now + _STATS_SECONDS
        snapshot = self._snapshot(now)
        for gateway in self._gateways.peers.values():
            self._frontend.send(gateway.identity, snapshot)
        if self._recorder is not None:
            self._recorder.flush()

    def _snapshot(self, now: float) -> Stats:
        return stats(
            self.state,
            incarnation=self._gateways.me.incarnation,
            uptime=now - self._started,
            dropped_frames=self._frontend.dropped + self._fleet.dropped,
            targets=self._targets,
            hung=[(name, hung.info) for name, hung in self._hung.items()],
        )


def _sensible(info: WorkerInfo) -> bool:
    sizes = (info.num_pages, info.page_size, info.max_num_batched_tokens, info.max_model_len)
    return all(1 <= size < _MOST_PAGES for size in sizes) and 1 <= info.max_num_seqs <= _MOST_ROWS


def _can_hold(info: WorkerInfo, held: HeldPages | None) -> bool:
    try:
        return held is None or all(page < info.num_pages for page in split_hashes(held))
    except ValueError:
        return False


def _mismatch(hello: Hello) -> str:
    try:
        check_version(hello)
    except WireError as error:
        return error.message
    return ""


def serve(config: Config, life: Lifecycle) -> int:
    """Bind both sockets, announce them and serve."""
    standby.wait()
    gc_tuning.settle()
    with ExitStack() as stack:
        where = stack.enter_context(closing(directory(config)))
        frontend = stack.enter_context(_bind(config, where, FRONTEND, config.bind))
        fleet = stack.enter_context(_bind(config, where, FLEET, config.bind_fleet))
        return Service(config, frontend, fleet, time.monotonic).run(life)


def _bind(config: Config, where: Directory, link: Link, given: str) -> Server:
    address = bind_address(config, link, given)
    trusted, keys = config.trusted_network, own_keys(config)
    server = Server(link, address, trusted_network=trusted, keys=keys)
    where.announce(link, default_name("scheduler"), address)
    return server
