"""The hello handshake, as two small state machines without a socket or a clock.

client                    server
  | -- Hello ------------> |   repeated every interval until answered
  | <------------ Hello -- |
  | -- Beat -------------> |   every interval; the server beats back
  | -- Beat -------------> |   (server restarted: knows nobody)
  | <-------------- Who -- |
  | -- Hello ------------> |   and so on; the new incarnation tells the client what happened
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from baton import __version__
from baton.errors import WireError
from baton.protocol import PROTOCOL, Beat, Hello, Message, Who

BEAT_SECONDS = 0.1
"""Interval of heartbeats."""
LOST_SECONDS = 2.0
"""A peer that is silent for this long is lost."""


def incarnation() -> int:
    """A fresh 63-bit number: this start of this process."""
    return secrets.randbits(63)


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
    server: Hello | None = None
    """The server's answer; None while it is unknown."""
    _next: float = 0.0
    _heard: float = 0.0
    _greeted: float = 0.0

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
        if isinstance(message, Who):
            self._forgotten(message, now)
            return False
        if not isinstance(message, Hello):
            return False
        check_version(message)
        fresh = self.server is None or self.server.incarnation != message.incarnation
        self.server = message
        self._greeted = now if fresh else self._greeted
        return fresh

    def _forgotten(self, who: Who, now: float) -> None:
        # A beat that crossed our Hello on its way is answered with Who, too: that is no news.
        crossed = self.server is not None and self.server.incarnation == who.incarnation
        if crossed and now - self._greeted < LOST_SECONDS / 2:
            return
        self.server = None
        self._next = 0.0

    def lost(self, now: float) -> bool:
        """True once when the server that had answered has gone silent; greets it anew."""
        if self.server is None or now - self._heard < LOST_SECONDS:
            return False
        self.server = None
        return True


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
            return Who(self.me.incarnation)
        peer.beat(beat, now)
        return Beat(self.me.name, self.me.incarnation)

    def expire(self, now: float, seconds: float = LOST_SECONDS) -> list[Peer]:
        """Remove and return the peers that have been silent for `seconds`."""
        gone = [p for p in self.peers.values() if now - p.heard > seconds]
        for peer in gone:
            del self.peers[peer.hello.name]
        return gone
