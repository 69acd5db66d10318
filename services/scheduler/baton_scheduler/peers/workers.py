"""The workers: their messages become events; a silent, hung or unreachable worker is removed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from baton.logs import logger
from baton.net.handshake import LOST_SECONDS, QUIET_SECONDS, Peer, PeerTable
from baton.net.sockets import Received, Server
from baton.protocol import (
    Beat,
    Drain,
    DrainWorker,
    Hello,
    HelloRequest,
    MediaEncoded,
    Message,
    ProcessDied,
    Pulled,
    Result,
    SetRole,
    Sleep,
    Stats,
    SwitchWeights,
    WakeUp,
    WorkerCommand,
    WorkerInfo,
    WorkerReply,
)
from baton_scheduler.events import (
    Cause,
    DeathExplained,
    Dispatch,
    Event,
    MediaSettled,
    Settled,
    Transferred,
    WorkerAssigned,
    WorkerDraining,
    WorkerJoined,
    WorkerLeft,
    WorkerMessage,
    WorkerReplied,
)
from baton_scheduler.peers.hello_checks import (
    TAKEN,
    RefusalLog,
    version_mismatch,
    why_worker_refused,
)
from baton_scheduler.workers.fleet import Fleet

_MOST_UNEXPLAINED = 64
_REBUILDS = (Sleep, WakeUp, SwitchWeights)
"""Commands that rebuild an engine or remove it."""

log = logger(__name__)


class Hooks(NamedTuple):
    """Callbacks of the service for messages of workers."""

    apply: Callable[[Event], None]
    clock: Callable[[], float]
    snapshot: Callable[[], Stats]
    """Statistics, for the health command."""
    changed: Callable[[], None]
    """A worker has joined or changed; gateways may be waiting for statistics."""


@dataclass
class _Hung:
    """A hung worker that was removed, but still sends heartbeats."""

    info: WorkerInfo
    last_received: float


def _role(peer: Peer) -> str:
    return peer.hello.worker.role if peer.hello.worker is not None else ""


class WorkerPeers:
    """The known workers, by name.

    A worker that was removed after silence or a hang is unknown from then on: its heartbeats are
    answered with `HelloRequest` until it sends a `Hello` with a new epoch.
    """

    def __init__(
        self, server: Server, me: Hello, fleet: Fleet, hooks: Hooks, hang_seconds: float
    ) -> None:
        self._server, self._fleet, self._hooks = server, fleet, hooks
        self._hang_seconds = hang_seconds
        self._peer_table, self._refusals = PeerTable(me), RefusalLog()
        self._hung: dict[str, _Hung] = {}
        self._unexplained: dict[str, int] = {}
        """Process -> epoch of a worker that is gone for an unknown reason."""
        self._logged_incompatible = False
        """A warning that some workers cannot transfer KV to each other was logged."""

    @property
    def hung(self) -> list[tuple[str, WorkerInfo]]:
        """Workers that were removed because they hang, and still send heartbeats."""
        return [(name, hung.info) for name, hung in self._hung.items()]

    def receive(self) -> None:
        """Process what has arrived."""
        for received in self._server.drain():
            self._receive(received)

    def send(self, decision: Dispatch | WorkerMessage) -> None:
        """Send a decision; if that fails, the worker is lost."""
        worker, message = self._peer_table.peers.get(decision.worker), decision.message
        if worker is None:
            return
        # Freeing or filling memory holds the interpreter lock for a while.
        if isinstance(message, WorkerCommand) and isinstance(message.action, _REBUILDS):
            worker.max_silence = QUIET_SECONDS
        if not self._server.send(worker.identity, message):
            self._give_up(worker, "it cannot be reached", "unknown")

    def expire(self, now: float) -> None:
        """Remove workers that are silent, unreachable or hung."""
        for worker in self._peer_table.expire(now):
            self._give_up(worker, "it has gone silent", "outside")
        self._probe()
        for worker in list(self._peer_table.peers.values()):
            if self._hangs(worker, now):
                name = worker.hello.name
                hung = self._fleet.get(name) or self._fleet.encoders.get(name)
                assert hung is not None
                self._hung[worker.hello.name] = _Hung(hung.info, now)
                self._give_up(worker, "it owes a result and does not advance", "inside")
        self._hung = {n: h for n, h in self._hung.items() if now - h.last_received <= LOST_SECONDS}

    def _receive(self, received: Received) -> None:
        message, peer = received.message, received.peer
        if isinstance(message, Hello) and message.service == "health":
            self._server.send(peer, self._hooks.snapshot())
        elif isinstance(message, DrainWorker):
            self._drain(message.name)
        elif isinstance(message, SetRole):
            self._assign(message)
        elif isinstance(message, ProcessDied):
            self._process_died(message)
        elif isinstance(message, Hello):
            self._register(peer, message)
        elif isinstance(message, Beat):
            self._beat(peer, message)
        elif (name := self._name_of(peer)) is None:
            self._server.dropped += 1
            self._server.send(peer, HelloRequest(self._peer_table.me.incarnation))
        else:
            self._apply(name, message)

    def _apply(self, name: str, message: Message) -> None:
        """A message of a worker that is registered."""
        if isinstance(message, Result):
            self._hooks.apply(Settled(name, message))
        elif isinstance(message, Pulled):
            self._hooks.apply(Transferred(name, message))
        elif isinstance(message, MediaEncoded):
            self._hooks.apply(MediaSettled(name, message))
        elif isinstance(message, WorkerReply):
            self._peer_table.peers[name].max_silence = LOST_SECONDS
            self._hooks.apply(WorkerReplied(name, message))
            self._hooks.changed()
        elif isinstance(message, Drain):
            log.info("worker %s drains", name)
            self._hooks.apply(WorkerDraining(name))

    def _name_of(self, peer: bytes) -> str | None:
        return next((n for n, p in self._peer_table.peers.items() if p.identity == peer), None)

    def _drain(self, name: str) -> None:
        worker = self._peer_table.peers.get(name)
        if worker is not None:
            log.info("draining worker %s", name)
            self._server.send(worker.identity, Drain())
            self._hooks.apply(WorkerDraining(name))

    def _assign(self, order: SetRole) -> None:
        worker = self._peer_table.peers.get(order.name)
        if worker is not None and "encode" in (order.role, _role(worker)):
            log.error("the role of %s stays: an encode worker has no decoder", order.name)
        elif worker is not None:
            log.info("worker %s is given the role %s", order.name, order.role)
            self._server.send(worker.identity, order)
            self._hooks.apply(WorkerAssigned(order.name, order.role))

    def _register(self, peer: bytes, hello: Hello) -> None:
        reason = version_mismatch(hello) or why_worker_refused(hello, self._fleet)
        if reason:
            self._refusals.add(hello, reason)
            return
        if self._peer_table.is_name_taken(peer, hello, self._hooks.clock(), self._server.send):
            self._refusals.add(hello, TAKEN)
            return
        name, info = hello.name, hello.worker
        former = self._peer_table.peers.get(name)
        self._peer_table.register(peer, hello, self._hooks.clock())
        self._server.send(peer, self._peer_table.me)
        if info is None or (former and former.hello.incarnation == hello.incarnation):
            return
        if former is not None:
            self._replace(former, info)
        # The process is alive; only its connection was lost.
        self._explain(info.process, "outside")
        self._hung.pop(name, None)
        log.info("worker %s joined", name)
        self._compare(name, info)
        self._hooks.changed()
        self._hooks.apply(WorkerJoined(name, hello.incarnation, info, hello.held))

    def _replace(self, old: Peer, info: WorkerInfo) -> None:
        """Remove a worker whose successor has joined; if the process is the same, it only
        reconnected."""
        same = old.hello.worker is not None and old.hello.worker.process == info.process != ""
        self._lose(old, "outside" if same else "unknown")

    def _process_died(self, death: ProcessDied) -> None:
        """The supervisor reports how a process exited; its worker may be lost already."""
        if not death.process:  # Workers that do not report their process have this value.
            return
        cause: Cause = "inside" if death.inside else "outside"
        for worker in list(self._peer_table.peers.values()):
            if worker.hello.worker is not None and worker.hello.worker.process == death.process:
                self._give_up(worker, f"its process has died, from {cause}", cause)
        self._explain(death.process, cause)

    def _explain(self, process: str, cause: Cause) -> None:
        """Report the exit cause of a worker that was lost for an unknown reason."""
        epoch = self._unexplained.pop(process, None)
        if epoch is not None:
            self._hooks.apply(DeathExplained(epoch, cause))

    def _compare(self, name: str, info: WorkerInfo) -> None:
        """Warn once if a joining worker cannot transfer KV to or from another one, and for each
        encode worker whose embeddings no worker accepts."""
        mates = self._fleet.serving(info.model)
        if info.role == "encode":
            takes = {w.info.encoder_layout for w in mates}
            if takes and info.encoder_layout not in takes:
                log.warning(
                    "no worker takes the embeddings of %s (%s): the workers that prefill %s encode "
                    "images themselves; start all workers with one --dtype",
                    *(name, info.encoder_layout, info.model),
                )
            return
        layouts = {w.name: w.info.kv_layout for w in mates if w.info.kv_address}
        other = next((n for n, layout in layouts.items() if layout != info.kv_layout), None)
        if self._logged_incompatible or other is None or not info.kv_address:
            return
        self._logged_incompatible = True
        log.warning(
            "no KV passes between the workers %s (%s) and %s (%s): what moves is computed again",
            *(other, layouts[other], name, info.kv_layout),
        )

    def _beat(self, peer: bytes, beat: Beat) -> None:
        now = self._hooks.clock()
        if beat.name in self._hung:
            self._hung[beat.name].last_received = now
        self._server.send(peer, self._peer_table.beat(beat, now))

    def _give_up(self, worker: Peer, why: str, cause: Cause) -> None:
        """Remove a worker and all workers of its expert group, which fail with it."""
        mates = self._mates(worker)
        self._leave(worker, why, cause)
        for mate in mates:
            self._leave(mate, f"it ends with {worker.hello.name}", "outside")

    def _mates(self, worker: Peer) -> list[Peer]:
        info = worker.hello.worker
        if info is None or not info.expert_group:
            return []
        others = (peer for peer in self._peer_table.peers.values() if peer is not worker)
        return [
            o for o in others if o.hello.worker and o.hello.worker.expert_group == info.expert_group
        ]

    def _leave(self, worker: Peer, why: str, cause: Cause) -> None:
        name = worker.hello.name
        if self._peer_table.peers.get(name) is worker:
            del self._peer_table.peers[name]
        log.warning("worker %s is lost: %s; its sequences go back to the queue", name, why)
        self._lose(worker, cause)

    def _lose(self, worker: Peer, cause: Cause) -> None:
        info = worker.hello.worker
        if cause == "unknown" and info is not None and info.process:
            self._unexplained[info.process] = worker.hello.incarnation
            if len(self._unexplained) > _MOST_UNEXPLAINED:
                del self._unexplained[next(iter(self._unexplained))]
        self._hooks.apply(WorkerLeft(worker.hello.name, cause))

    def _probe(self) -> None:
        """Detect workers whose process is gone, without waiting for their silence to time out."""
        me, peers = self._peer_table.me, self._peer_table.peers
        beat = Beat(me.name, me.incarnation)
        unreachable = [w for w in peers.values() if not self._server.send(w.identity, beat)]
        for worker in unreachable:
            # Skip it if it was removed with another worker of its expert group.
            if peers.get(worker.hello.name) is worker:
                self._give_up(worker, "its connection is gone", "unknown")

    def _hangs(self, peer: Peer, now: float) -> bool:
        """True if a worker makes no progress although a result is due, or has not received the
        plan."""
        name = peer.hello.name
        worker = self._fleet.get(name) or self._fleet.encoders.get(name)
        since = worker.waiting_since if worker is not None else None
        if since is None or now - since <= self._hang_seconds:
            return False
        return not peer.busy or now - peer.progressed > self._hang_seconds
