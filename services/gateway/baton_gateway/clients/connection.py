"""One greeted connection to a server: says Hello, beats, notices a restart, hands on messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from baton.errors import WireError
from baton.logs import logger
from baton.net.handshake import BEAT_SECONDS, LOST_SECONDS, Greeting
from baton.net.sockets import Received
from baton.net.topology import FRONTEND, Link
from baton.protocol import Beat, Envelope, Hello, HelloRequest, Message

_AWAY_SECONDS = 3.0
"""How long a server may be away whose connection broke."""

log = logger(__name__)


class Channel(Protocol):
    """What a connection needs of a socket; `baton.net.sockets.AsyncClient` is one."""

    async def post(self, message: Message, envelope: Envelope | None = None) -> bool:
        """Send without waiting. False when the server is not connected."""

    async def receive(self) -> Received:
        """Wait for the next message."""

    def broke(self) -> bool:
        """Whether the connection has broken since the last call."""

    def close(self) -> None:
        """Close the socket."""


Connect = Callable[[Link, str, bytes], Channel]
"""(link, address, identity) -> channel"""


class Listener(Protocol):
    """Whoever works with a connection. `joined` and `lost` alternate, beginning with `joined`."""

    async def joined(self, connection: Connection) -> None:
        """A server has answered. It remembers nothing of what was sent before."""

    async def lost(self, connection: Connection) -> None:
        """The server is silent, the connection broke, or a new incarnation has taken over."""

    async def received(self, connection: Connection, message: Message) -> None:
        """A message that is not part of the handshake."""


class Connection:
    """Life cycle: `start` once, `post` while `server` is known, `close` at the end."""

    def __init__(
        self,
        channel: Channel,
        address: str,
        hello: Hello,
        listener: Listener,
        *,
        alone: bool = False,
    ) -> None:
        """`alone`: no other server could take the place of this one."""
        self.address = address
        self.known = False
        """Somebody has answered at least once."""
        self._channel = channel
        self._listener = listener
        self._greeting = Greeting(hello, alone)
        self._joined = False
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def server(self) -> Hello | None:
        """Who answers at the other end; None while nobody does."""
        return self._greeting.server

    @property
    def silent(self) -> bool:
        """Who has answered at this end has said nothing for a while, and may not hear us either.

        A connection that broke is mostly a server that died, and the next one answers soon.
        """
        patience = LOST_SECONDS if self.server is not None else _AWAY_SECONDS
        return self._greeting.silence(time.monotonic()) >= patience

    def start(self) -> None:
        """Begin to greet and to receive."""
        self._tasks = [asyncio.create_task(self._beat()), asyncio.create_task(self._receive())]

    async def post(self, message: Message, envelope: Envelope | None = None) -> bool:
        """Send without waiting. False when nobody is there."""
        return self.server is not None and await self._channel.post(message, envelope)

    async def close(self) -> None:
        """Stop both tasks and close the socket. The listener is told if a server was there."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._channel.close()
        await self._leave()

    async def _beat(self) -> None:
        while True:
            now = time.monotonic()
            await self._look()
            if self._greeting.lost(now):
                log.warning("lost the server at %s", self.address)
                await self._leave()
            message = self._greeting.due(now)
            if message is not None:
                await self._channel.post(message)
            await asyncio.sleep(BEAT_SECONDS / 2)

    async def _look(self) -> None:
        """What was on its way when the connection broke may be gone: begin anew."""
        if self._channel.broke() and self.server is not None:
            log.warning("the connection to the server at %s broke", self.address)
            self._greeting.renew()
            await self._leave()

    async def _receive(self) -> None:
        while True:
            message = (await self._channel.receive()).message
            try:
                await self._look()
                await self._heard(message)
            except WireError as error:
                log.error("cannot work with the server at %s: %s", self.address, error.message)
            except Exception:
                # Tokens that this message brought are missing from here on; the next message
                # of each of its sequences shows the gap, and those tokens are made again.
                log.exception("could not apply %s from %s", type(message).__name__, self.address)

    async def _heard(self, message: Message) -> None:
        if isinstance(message, HelloRequest) and self.server is not None:
            # Either a new incarnation, or the same one has given us up for lost.
            self._greeting.server = None
            await self._leave()
        fresh = self._greeting.heard(message, time.monotonic())
        if fresh:
            await self._leave()
            self._joined = self.known = True
            await self._listener.joined(self)
        elif self._joined and not isinstance(message, (Hello, Beat, HelloRequest)):
            await self._listener.received(self, message)

    async def _leave(self) -> None:
        if self._joined:
            self._joined = False
            await self._listener.lost(self)


class Pool:
    """Connections to every server of one link, as the directory lists them."""

    def __init__(self, link: Link, hello: Hello, connect: Connect, listener: Listener) -> None:
        self._link, self._hello = link, hello
        self._connect, self._listener = connect, listener
        self._connections: dict[str, Connection] = {}
        self._turn = 0

    async def follow(self, addresses: tuple[str, ...]) -> None:
        """Connect to new addresses, let go of those that are gone."""
        for address in addresses:
            if address not in self._connections:
                channel = self._connect(self._link, address, self._hello.name.encode())
                alone = self._link is FRONTEND
                connection = Connection(channel, address, self._hello, self._listener, alone=alone)
                self._connections[address] = connection
                connection.start()
        for address in set(self._connections) - set(addresses):
            await self._connections.pop(address).close()

    def ready(self) -> list[Connection]:
        """Connections whose server answers."""
        return [c for c in self._connections.values() if c.server is not None]

    def silent(self) -> bool:
        """There are servers, and none of them says anything."""
        return bool(self._connections) and all(c.silent for c in self._connections.values())

    def pick(self) -> Connection | None:
        """One of the ready connections, each in its turn."""
        ready = self.ready()
        self._turn += 1
        return ready[self._turn % len(ready)] if ready else None

    def servers(self) -> list[tuple[bool, Hello | None]]:
        """(whether anybody ever answered, who answers now) of every connection."""
        return [(c.known, c.server) for c in self._connections.values()]

    async def close(self) -> None:
        """Close every connection."""
        await self.follow(())


async def wait_until(ready: Callable[[], bool], seconds: float) -> bool:
    """Wait until a condition holds, at most `seconds`. False when it still does not."""
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(0.02)
    return True
