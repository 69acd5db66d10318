"""The hello handshake, as two small state machines without a socket or a clock.

client                    server
  | -- Hello ------------> |   repeated every interval until answered
  | <------------ Hello -- |
  | -- Beat -------------> |   every interval; the server beats back
  | -- Beat -------------> |   (server restarted: knows nobody)
  | <-------------- Who -- |
  | -- Hello ------------> |   and so on; the new incarnation tells the client what happened
  |      (silence)         |   or the connection broke: what was on its way may be gone
  | -- Hello ------------> |   with a new incarnation of the client: the server drops all of the old
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from msgspec import structs

from baton import __version__
from baton.errors import WireError
from baton.protocol import PROTOCOL, Beat, Hello, HelloRequest, Message

BEAT_SECONDS = 0.1
"""Interval of heartbeats."""
LOST_SECONDS = 1.0
"""A peer that is silent for this long is lost, if another one can take its place."""
QUIET_SECONDS = 5.0
"""The same where none can: to begin anew would cost more than to wait. A peer that has died is
noticed at once, by its connection; this is about one that is stopped or cut off."""
LOOK_SECONDS = 0.2
"""Silence counts only while somebody listens: at most so much of it between two looks."""


def incarnation() -> int:
    """A fresh 63-bit number: this start of this process."""
    return secrets.randbits(63)


def away(looked: float, now: float) -> float:
    """How much of the time since the last look (0: none yet) nobody can be blamed for."""
    return max(0.0, now - looked - LOOK_SECONDS) if looked else 0.0


def check_version(hello: Hello) -> None:
    """Raise `WireError` that names the side to upgrade when protocols differ."""
    if hello.protocol != PROTOCOL:
        older = hello.name if hello.protocol < PROTOCOL else "this side"
        raise WireError(
            f"{hello.name} speaks protocol {hello.protocol} (version {hello.version}), this side "
            f"{PROTOCOL} (version {__version__}): upgrade {older}."
        )


@dataclass
class Greeting:
    """The client's half: what to send now, and whether the server is a new one."""

    hello: Hello
    alone: bool = False
    """No other server could take its place."""
    server: Hello | None = None
    """The server's answer; None while it is unknown."""
    _next: float = 0.0
    _heard: float = 0.0
    _greeted: float = 0.0
    _looked: float = 0.0

    def due(self, now: float, *, progress: int = 0, busy: bool = False) -> Message | None:
        """The message that should be sent at `now`, if any: Hello until answered, then Beat."""
        if now < self._next:
            return None
        self._next = now + BEAT_SECONDS
        if self.server is None:
            return self.hello
        return Beat(self.hello.name, self.hello.incarnation, progress, busy)

    def heard(self, message: Message, now: float) -> bool:
        """Take note of any message from the server. True when a new incarnation has answered."""
        self._heard = now
        if isinstance(message, HelloRequest):
            self._forgotten(message, now)
            return False
        if not isinstance(message, Hello):
            return False
        check_version(message)
        fresh = self.server is None or self.server.incarnation != message.incarnation
        self.server = message
        self._greeted = now if fresh else self._greeted
        return fresh

    def _forgotten(self, who: HelloRequest, now: float) -> None:
        # A beat that crossed our Hello on its way is answered with Who, too: that is no news.
        crossed = self.server is not None and self.server.incarnation == who.incarnation
        if crossed and now - self._greeted < LOST_SECONDS / 2:
            return
        self.server = None
        self._next = 0.0

    def lost(self, now: float) -> bool:
        """True once when the server that had answered has gone silent; greets it anew.

        Ask often: of a long time between two calls, in which this process may have been stopped,
        only `LOOK_SECONDS` count.
        """
        self._heard += away(self._looked, now)
        self._looked = now
        patience = QUIET_SECONDS if self.alone else LOST_SECONDS
        if self.server is None or now - self._heard < patience:
            return False
        self.renew()
        return True

    def silence(self, now: float) -> float:
        """Seconds since the server has said anything, of those in which somebody listened; 0 when
        none has ever answered."""
        return max(0.0, now - self._heard - away(self._looked, now)) if self._heard else 0.0

    def renew(self) -> None:
        """Nobody knows what the server has of this client: greet it anew, as a new client."""
        self.hello = structs.replace(self.hello, incarnation=incarnation())
        self.server = None
        self._next = 0.0


@dataclass
class Peer:
    """One client as its server knows it."""

    identity: bytes
    hello: Hello
    heard: float
    progress: int = 0
    progressed: float = 0.0
    """When `progress` last advanced, or the peer was last idle."""
    busy: bool = False

    def beat(self, beat: Beat, now: float) -> None:
        """Note a heartbeat."""
        if beat.progress != self.progress or not beat.busy:
            self.progressed = now
        self.progress, self.busy, self.heard = beat.progress, beat.busy, now

    def hung(self, now: float, seconds: float) -> bool:
        """Busy, and no progress for `seconds`."""
        return self.busy and now - self.progressed > seconds


@dataclass
class Roster:
    """The server's half: who is there, by name."""

    me: Hello
    peers: dict[str, Peer] = field(default_factory=dict)
    _looked: float = 0.0

    def greet(self, identity: bytes, hello: Hello, now: float) -> Peer | None:
        """Register a peer. Returns the one that it replaces: same name, older incarnation."""
        check_version(hello)
        old = self.peers.get(hello.name)
        if old is not None and old.hello.incarnation == hello.incarnation:
            old.identity, old.heard = identity, now
            return None
        self.peers[hello.name] = Peer(identity, hello, heard=now, progressed=now)
        return old

    def beat(self, beat: Beat, now: float) -> Message:
        """Answer a heartbeat: Beat for a known peer, Who for a stranger."""
        peer = self.peers.get(beat.name)
        if peer is None or peer.hello.incarnation != beat.incarnation:
            return HelloRequest(self.me.incarnation)
        peer.beat(beat, now)
        return Beat(self.me.name, self.me.incarnation)

    def expire(self, now: float, seconds: float = LOST_SECONDS) -> list[Peer]:
        """Remove and return the peers that have been silent for `seconds`.

        Ask often, as of `Greeting.lost`.
        """
        missed, self._looked = away(self._looked, now), now
        for peer in self.peers.values():
            peer.heard += missed
            peer.progressed += missed
        gone = [p for p in self.peers.values() if now - p.heard > seconds]
        for peer in gone:
            del self.peers[peer.hello.name]
        return gone
