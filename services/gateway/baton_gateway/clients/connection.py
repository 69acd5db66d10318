"""Connection to one server: handshake, heartbeats, restart detection, message dispatch."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from baton.errors import WireError
from baton.logs import logger
from baton.net.handshake import BEAT_SECONDS, LOST_SECONDS, ClientHandshake, unique_identity
from baton.net.sockets import Received
from baton.net.topology import FRONTEND, Link
from baton.protocol import Beat, Envelope, Hello, HelloRequest, Message

_AWAY_SECONDS = 3.0
"""Seconds of silence after which a disconnected server counts as silent."""

log = logger(__name__)


class Channel(Protocol):
    """The socket interface that a connection needs, such as `baton.net.sockets.AsyncClient`."""

    async def post(self, message: Message, envelope: Envelope | None = None) -> bool:
        """Send without waiting. False when the server is not connected."""

    async def receive(self) -> Received:
        """Wait for the next message."""

    def broke(self) -> bool:
        """Return whether the connection has broken since the last call."""

    def close(self) -> None:
        """Close the socket."""


Connect = Callable[[Link, str, bytes], Channel]
"""(link, address, identity) -> channel"""


class Listener(Protocol):
    """Callbacks of a connection. `joined` and `lost` alternate, beginning with `joined`."""

    async def joined(self, connection: Connection) -> None:
        """A server has completed the handshake. It has no state of earlier connections."""

    async def lost(self, connection: Connection) -> None:
        """The server is silent, the connection broke, or the server has restarted."""

    async def received(self, connection: Connection, message: Message) -> None:
        """A message outside the handshake has arrived."""


class Connection:
    """Life cycle: `start` once, `post` while `server` is set, `close` at the end."""

    def __init__(
        self,
        channel: Channel,
        address: str,
        hello: Hello,
        listener: Listener,
        *,
        alone: bool = False,
    ) -> None:
        """`alone`: no other server can take over from this one."""
        self.address = address
        self.was_connected = False
        """True once a server has completed the handshake."""
        self._channel = channel
        self._listener = listener
        self._handshake = ClientHandshake(hello, alone)
        self._joined = False
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def server(self) -> Hello | None:
        """The connected server; None while disconnected."""
        return self._handshake.server

    @property
    def silent(self) -> bool:
        """True if the server has been silent for a while.

        A broken connection usually means that the server has exited; its replacement connects soon,
        so the time limit is longer then.
        """
        timeout = LOST_SECONDS if self.server is not None else _AWAY_SECONDS
        return self._handshake.silence(time.monotonic()) >= timeout

    def start(self) -> None:
        """Start the heartbeat and receive tasks."""
        self._tasks = [asyncio.create_task(self._beat()), asyncio.create_task(self._receive())]

    async def post(self, message: Message, envelope: Envelope | None = None) -> bool:
        """Send without waiting. False when no server is connected."""
        return self.server is not None and await self._channel.post(message, envelope)

    async def close(self) -> None:
        """Stop both tasks and close the socket. Calls `lost` if a server was connected."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._channel.close()
        await self._leave()

    async def _beat(self) -> None:
        while True:
            now = time.monotonic()
            await self._look()
            if self._handshake.lost(now):
                log.warning("lost the server at %s", self.address)
                await self._leave()
            message = self._handshake.due(now)
            if message is not None:
                await self._channel.post(message)
            await asyncio.sleep(BEAT_SECONDS / 2)

    async def _look(self) -> None:
        """Reconnect after a break, since messages in flight may be lost."""
        if self._channel.broke() and self.server is not None:
            log.warning("the connection to the server at %s broke", self.address)
            self._handshake.renew()
            await self._leave()

    async def _receive(self) -> None:
        while True:
            message = (await self._channel.receive()).message
            try:
                await self._look()
                await self._handle(message)
            except WireError as error:
                log.error("cannot work with the server at %s: %s", self.address, error.message)
            except Exception:
                # The tokens of this message are lost; the next message of each sequence reveals the
                # gap, and they are generated again.
                log.exception("could not apply %s from %s", type(message).__name__, self.address)

    async def _handle(self, message: Message) -> None:
        if isinstance(message, HelloRequest) and self.server is not None:
            # The server has restarted, or considered this gateway lost.
            self._handshake.server = None
            await self._leave()
        fresh = self._handshake.receive(message, time.monotonic())
        if fresh:
            await self._leave()
            self._joined = self.was_connected = True
            await self._listener.joined(self)
        elif self._joined and not isinstance(message, (Hello, Beat, HelloRequest)):
            await self._listener.received(self, message)

    async def _leave(self) -> None:
        if self._joined:
            self._joined = False
            await self._listener.lost(self)


class Pool:
    """Connections to all servers of one link, as listed by the directory."""

    def __init__(self, link: Link, hello: Hello, connect: Connect, listener: Listener) -> None:
        self._link, self._hello = link, hello
        self._connect, self._listener = connect, listener
        self._connections: dict[str, Connection] = {}
        self._turns: Counter[str] = Counter()
        """Picks by model."""

    async def follow(self, addresses: tuple[str, ...]) -> None:
        """Connect to new addresses and close connections to removed ones."""
        for address in addresses:
            if address not in self._connections:
                identity = unique_identity(self._hello.name)
                channel = self._connect(self._link, address, identity)
                alone = self._link is FRONTEND
                connection = Connection(channel, address, self._hello, self._listener, alone=alone)
                self._connections[address] = connection
                connection.start()
        for address in set(self._connections) - set(addresses):
            await self._connections.pop(address).close()

    def ready(self, model: str = "") -> list[Connection]:
        """Return the connections to servers that are available and serve `model`, if given."""
        connections = self._connections.values()
        return [c for c in connections if c.server is not None and _serves(c.server, model)]

    def silent(self) -> bool:
        """True if there are servers and all are silent."""
        return bool(self._connections) and all(c.silent for c in self._connections.values())

    def pick(self, model: str = "") -> Connection | None:
        """Return a ready connection, round-robin among the servers of a model, if given."""
        ready = self.ready(model)
        self._turns[model] += 1
        return ready[self._turns[model] % len(ready)] if ready else None

    def servers(self) -> list[tuple[bool, Hello | None]]:
        """Return (ever connected, current server) of each connection."""
        return [(c.was_connected, c.server) for c in self._connections.values()]

    async def close(self) -> None:
        """Close every connection."""
        await self.follow(())


def _serves(server: Hello, model: str) -> bool:
    """Return whether a tokenizer or media preprocessor serves a model; "" means any."""
    info = server.tokenizer or server.media
    return not model or (info is not None and info.model == model)


async def wait_until(ready: Callable[[], bool], seconds: float) -> bool:
    """Wait until `ready()` holds, at most `seconds`. False on time-out."""
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(0.02)
    return True
