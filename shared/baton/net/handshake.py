"""Handshake and heartbeats, as two state machines without sockets or clocks.

client                    server
  | -- Hello ------------> |   repeated every interval until answered
  | <------------ Hello -- |
  | -- Beat -------------> |   every interval; the server answers with its own
  | -- Beat -------------> |   (the server has restarted and does not know the client)
  | <----- HelloRequest -- |
  | -- Hello ------------> |   the server's new incarnation shows the client the restart
  |      (silence)         |   or a broken connection: messages in flight may be lost
  | -- Hello ------------> |   new incarnation of the client: the server drops its old state
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec import structs

from baton import __version__
from baton.errors import WireError
from baton.protocol import PROTOCOL, Beat, Hello, HelloRequest, Message

BEAT_SECONDS = 0.1
"""Interval of heartbeats."""
LOST_SECONDS = 1.0
"""Silence after which a peer is lost, if another one can take its place."""
QUIET_SECONDS = 5.0
"""Silence after which a peer without a substitute is lost. Longer, since a new start costs more
than waiting. An exited peer is detected at once by its broken connection; this covers a peer that
is stopped or cut off."""
CHECK_SECONDS = 0.2
"""Maximum time between two checks that counts as silence of the peer; a longer gap means that this
process was stopped."""


def incarnation() -> int:
    """A random 63-bit number that identifies one start of a process."""
    return secrets.randbits(63)


def unique_identity(name: str) -> bytes:
    """A unique socket identity, whatever the name of the process: a server passes the identity of a
    connection to the next one that claims it."""
    return f"{name}/{secrets.token_hex(8)}".encode()


def suspended_seconds(last_check: float, now: float) -> float:
    """Seconds since the last check (0: none yet) during which this process did not listen."""
    return max(0.0, now - last_check - CHECK_SECONDS) if last_check else 0.0


def check_version(hello: Hello) -> None:
    """Raise `WireError`, which names the side to upgrade, if the protocol versions differ."""
    if hello.protocol != PROTOCOL:
        older = hello.name if hello.protocol < PROTOCOL else "this side"
        raise WireError(
            f"{hello.name} speaks protocol {hello.protocol} (version {hello.version}), this side "
            f"{PROTOCOL} (version {__version__}): upgrade {older}."
        )


@dataclass
class ClientHandshake:
    """Client side: the next message to send, and detection of server restarts."""

    hello: Hello
    alone: bool = False
    """There is no other server to switch to."""
    server: Hello | None = None
    """The server's answer; None before it."""
    _next: float = 0.0
    _last_received: float = 0.0
    _answered_at: float = 0.0
    _last_check: float = 0.0

    def due(self, now: float, *, progress: int = 0, busy: bool = False) -> Message | None:
        """Message to send at `now`, if any: `Hello` until it is answered, then `Beat`."""
        if now < self._next:
            return None
        self._next = now + BEAT_SECONDS
        if self.server is None:
            return self.hello
        return Beat(self.hello.name, self.hello.incarnation, progress, busy)

    def receive(self, message: Message, now: float) -> bool:
        """Process a message from the server. Returns True if a new incarnation has answered."""
        self._last_received = now
        if isinstance(message, HelloRequest):
            self._on_hello_request(message, now)
            return False
        if not isinstance(message, Hello):
            return False
        check_version(message)
        fresh = self.server is None or self.server.incarnation != message.incarnation
        self.server = message
        self._answered_at = now if fresh else self._answered_at
        return fresh

    def _on_hello_request(self, request: HelloRequest, now: float) -> None:
        # A reply to a heartbeat that crossed our Hello in flight: ignore it.
        crossed = self.server is not None and self.server.incarnation == request.incarnation
        if crossed and now - self._answered_at < LOST_SECONDS / 2:
            return
        self.server = None
        self._next = 0.0

    def lost(self, now: float) -> bool:
        """Return True once when the server has gone silent, and start a new handshake.

        Call it often: at most `CHECK_SECONDS` of the time between two calls count, since this
        process may have been stopped.
        """
        self._last_received += suspended_seconds(self._last_check, now)
        self._last_check = now
        max_silence = QUIET_SECONDS if self.alone else LOST_SECONDS
        if self.server is None or now - self._last_received < max_silence:
            return False
        self.renew()
        return True

    def silence(self, now: float) -> float:
        """Seconds since the server's last message, without time in which this process did not
        listen; 0 before its first message."""
        if not self._last_received:
            return 0.0
        suspended = suspended_seconds(self._last_check, now)
        return max(0.0, now - self._last_received - suspended)

    def renew(self) -> None:
        """Start a new handshake with a new incarnation, since the server's view of this client is
        unknown."""
        self.hello = structs.replace(self.hello, incarnation=incarnation())
        self.server = None
        self._next = 0.0


@dataclass
class Peer:
    """A client as seen by its server."""

    identity: bytes
    hello: Hello
    last_received: float
    progress: int = 0
    progressed: float = 0.0
    """Time at which `progress` last advanced or the peer was last idle."""
    busy: bool = False
    max_silence: float = LOST_SECONDS
    """Seconds of silence after which this peer counts as lost."""

    def beat(self, beat: Beat, now: float) -> None:
        """Process a heartbeat."""
        if beat.progress != self.progress or not beat.busy:
            self.progressed = now
        self.progress, self.busy, self.last_received = beat.progress, beat.busy, now

    def hung(self, now: float, seconds: float) -> bool:
        """True if the peer is busy and has made no progress for `seconds`."""
        return self.busy and now - self.progressed > seconds


@dataclass
class PeerTable:
    """Server side: known clients by name."""

    me: Hello
    peers: dict[str, Peer] = field(default_factory=dict)
    _last_check: float = 0.0

    def register(self, identity: bytes, hello: Hello, now: float) -> Peer | None:
        """Register a client. Returns the client that it replaces (same name, older incarnation), if
        any."""
        check_version(hello)
        old = self.peers.get(hello.name)
        if old is not None and old.hello.incarnation == hello.incarnation:
            old.identity, old.last_received = identity, now
            return None
        self.peers[hello.name] = Peer(identity, hello, last_received=now, progressed=now)
        return old

    def is_name_taken(
        self, identity: bytes, hello: Hello, now: float, reach: Callable[[bytes, Message], bool]
    ) -> bool:
        """True if another live process has this name, so that this `Hello` must be ignored: it must
        not interrupt that process. A process counts as dead if it has been silent, or cannot be
        reached.

        `reach`: sends a message to an identity, and returns whether that exists.
        """
        peer = self.peers.get(hello.name)
        if peer is None or peer.identity == identity or now - peer.last_received >= LOST_SECONDS:
            return False
        same = peer.hello.incarnation == hello.incarnation
        return not same and reach(peer.identity, Beat(self.me.name, self.me.incarnation))

    def beat(self, beat: Beat, now: float) -> Message:
        """Answer to a heartbeat: `Beat` for a known client, `HelloRequest` for an unknown one."""
        peer = self.peers.get(beat.name)
        if peer is None or peer.hello.incarnation != beat.incarnation:
            return HelloRequest(self.me.incarnation)
        peer.beat(beat, now)
        return Beat(self.me.name, self.me.incarnation)

    def expire(self, now: float, seconds: float = LOST_SECONDS) -> list[Peer]:
        """Remove and return the clients that were silent for `seconds` and for their `max_silence`.

        Call it often, like `ClientHandshake.lost`.
        """
        missed, self._last_check = suspended_seconds(self._last_check, now), now
        for peer in self.peers.values():
            peer.last_received += missed
            peer.progressed += missed
        expired = [
            p for p in self.peers.values() if now - p.last_received > max(seconds, p.max_silence)
        ]
        for peer in expired:
            del self.peers[peer.hello.name]
        return expired
