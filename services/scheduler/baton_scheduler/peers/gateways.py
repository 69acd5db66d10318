"""The gateways: their messages become events, and their loss too."""

from __future__ import annotations

from collections.abc import Callable

from baton.logs import logger
from baton.net.handshake import QUIET_SECONDS, Peer, PeerTable
from baton.net.sockets import Received, Server
from baton.protocol import (
    Abort,
    AdminCommand,
    Beat,
    Hello,
    HelloRequest,
    Message,
    ResetCache,
    Submit,
)
from baton_scheduler.events import (
    Aborted,
    AdminRequested,
    Arrived,
    CacheCleared,
    Event,
    GatewayLost,
    Reply,
)
from baton_scheduler.peers.hello_checks import TAKEN, RefusalLog, version_mismatch

log = logger(__name__)


class GatewayPeers:
    """The known gateways, by name."""

    def __init__(
        self,
        server: Server,
        me: Hello,
        apply: Callable[[Event], None],
        clock: Callable[[], float],
    ) -> None:
        self._server, self._apply, self._clock = server, apply, clock
        self._peer_table, self._refusals = PeerTable(me), RefusalLog()
        self._senders: dict[bytes, str] = {}
        """Socket identity -> gateway name."""

    def receive(self) -> None:
        """Process what has arrived."""
        for received in self._server.drain():
            self._receive(received)

    def send(self, reply: Reply) -> None:
        """Send a decision; if that fails, the gateway is lost."""
        gateway = self._peer_table.peers.get(reply.gateway)
        if gateway is not None and not self._server.send(gateway.identity, reply.message):
            self._forget(gateway)

    def broadcast(self, message: Message) -> None:
        """Send a message to all gateways."""
        for gateway in self._peer_table.peers.values():
            self._server.send(gateway.identity, message)

    def expire(self, now: float) -> None:
        """Drop gateways that have been silent for too long."""
        for gateway in self._peer_table.expire(now, QUIET_SECONDS):
            self._forget(gateway)

    def _receive(self, received: Received) -> None:
        message, peer = received.message, received.peer
        if isinstance(message, Hello):
            self._register(peer, message)
        elif isinstance(message, Beat):
            self._server.send(peer, self._peer_table.beat(message, self._clock()))
        elif (name := self._senders.get(peer)) is None:
            self._server.dropped += 1
            self._server.send(peer, HelloRequest(self._peer_table.me.incarnation))
        elif isinstance(message, Submit):
            envelope = received.envelope
            self._apply(Arrived(name, message, envelope.trace, envelope.deadline_ms))
        elif isinstance(message, Abort):
            self._abort(name, message)
        elif isinstance(message, ResetCache):
            self._apply(CacheCleared(name, message.id))
        elif isinstance(message, AdminCommand):
            self._apply(AdminRequested(name, message))

    def _register(self, peer: bytes, hello: Hello) -> None:
        reason = version_mismatch(hello)
        if reason:
            self._refusals.add(hello, reason)
            return
        if self._peer_table.is_name_taken(peer, hello, self._clock(), self._server.send):
            self._refusals.add(hello, TAKEN)
            return
        old = self._peer_table.register(peer, hello, self._clock())
        if old is not None:
            self._forget(old)
        self._senders[peer] = hello.name
        self._server.send(peer, self._peer_table.me)

    def _abort(self, name: str, message: Abort) -> None:
        if len(message.handles) % 4:
            self._server.dropped += 1
            log.warning("dropped an Abort of %s: its column is cut off", name)
        else:
            self._apply(Aborted(name, message.handles))

    def _forget(self, gateway: Peer) -> None:
        """Drop a gateway that is gone."""
        name = gateway.hello.name
        if self._peer_table.peers.get(name) is gateway:
            del self._peer_table.peers[name]
        self._senders = {peer: n for peer, n in self._senders.items() if n != name}
        log.warning("gateway %s is lost: its sequences end", name)
        self._apply(GatewayLost(name))
