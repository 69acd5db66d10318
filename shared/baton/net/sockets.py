"""Typed ZeroMQ endpoints: a server binds a ROUTER, a client connects a DEALER, with bounded queues.

No message is queued for a disconnected peer (`IMMEDIATE`, `ROUTER_MANDATORY`): `send` returns False
instead, so the caller knows that the message was not sent.
"""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import zmq

from baton.errors import SettingsError, WireError
from baton.logs import logger
from baton.net.codec import MAX_FRAME, decode, encode
from baton.net.curve import CurveKeys
from baton.net.topology import Link
from baton.protocol import Envelope, Message

_HIGH_WATER = 10_000
"""Queue limit in messages per peer. A peer with a full queue is treated as gone."""
_LINGER_MS = 1_000
"""How long a closed socket goes on sending to connected peers, and a process waits for that."""
_ARRIVED = int(zmq.POLLIN)

log = logger(__name__)


class Received(NamedTuple):
    """One valid message."""

    peer: bytes
    """ZeroMQ identity of the sender; empty on a client, which has a single peer."""
    envelope: Envelope
    message: Message


def _configure(socket: zmq.Socket[bytes]) -> None:
    socket.setsockopt(zmq.LINGER, _LINGER_MS)
    socket.setsockopt(zmq.SNDHWM, _HIGH_WATER)
    socket.setsockopt(zmq.RCVHWM, _HIGH_WATER)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME)
    socket.setsockopt(zmq.HANDSHAKE_IVL, 3_000)
    socket.setsockopt(zmq.HEARTBEAT_IVL, 1_000)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 4_000)


def check_bind(address: str, *, protected: bool) -> None:
    """Raise `SettingsError` for an address that would expose the control plane.

    `ipc://` needs a directory that only this user can enter; `tcp://` needs CURVE keys, or the
    operator's confirmation that the network is private. Loopback is no exception: every user of the
    machine, and every container with its network, reaches it.
    """
    if address.startswith("ipc://"):
        folder = Path(address.removeprefix("ipc://")).parent
        mode = stat.S_IMODE(folder.stat().st_mode)
        if mode & 0o077:
            raise SettingsError(f"{folder} must have mode 0700 to hold sockets, it has {mode:04o}.")
    elif not protected:
        raise SettingsError(
            f"Binding {address} exposes the control plane. Use ipc://, make keys with `baton keys` "
            "and set BATON_CURVE_KEYS_DIR, or set BATON_TRUSTED_NETWORK=true when only Baton's own "
            "containers can reach that network."
        )


class _Endpoint:
    """Common part: a socket, the accepted message types, and a count of dropped frames."""

    def __init__(self, kind: int, link: Link, accepts: tuple[type[Message], ...]) -> None:
        self.link = link
        self.dropped = 0
        """Number of invalid frames, and of messages to peers with a full queue."""
        self.socket: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
        _configure(self.socket)
        self._accepts = accepts
        self._blamed: set[bytes] = set()

    def _decode(self, peer: bytes, frames: list[bytes]) -> Received | None:
        try:
            return Received(peer, *decode(frames, self._accepts))
        except WireError as error:
            self.dropped += 1
            if peer not in self._blamed and len(self._blamed) < 1000:
                self._blamed.add(peer)
                log.warning("dropped a frame on link %s: %s", self.link.name, error.message[:200])
            return None

    def close(self) -> None:
        """Close the socket. What was sent to a connected peer still goes out, for at most 1 s."""
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: object, trace: TracebackType | None
    ) -> None:
        self.close()


class Server(_Endpoint):
    """The binding side of a link, with many peers, each with an identity."""

    def __init__(
        self,
        link: Link,
        address: str,
        *,
        trusted_network: bool = False,
        keys: CurveKeys | None = None,
    ) -> None:
        check_bind(address, protected=trusted_network or keys is not None)
        super().__init__(zmq.ROUTER, link, link.requests)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        if keys is not None:
            keys.bind(self.socket, link)
        self.socket.bind(address)
        self.address = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        """Address that it listens on, with wildcard ports resolved."""

    def send(self, peer: bytes, message: Message, envelope: Envelope | None = None) -> bool:
        """Send without blocking. Returns False if the peer is gone or its queue is full."""
        try:
            self.socket.send_multipart([peer, *encode(message, envelope)], zmq.NOBLOCK)
        except (zmq.Again, zmq.ZMQError):
            self.dropped += 1
            return False
        return True

    def drain(self, limit: int = 1000) -> Iterator[Received]:
        """Yield received messages, at most `limit`."""
        for _ in range(limit):
            try:
                peer, *frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            received = self._decode(peer, frames)
            if received is not None:
                yield received


class Client(_Endpoint):
    """The connecting side of a link, with one peer."""

    def __init__(
        self, link: Link, address: str, identity: bytes, keys: CurveKeys | None = None
    ) -> None:
        super().__init__(zmq.DEALER, link, link.replies)
        if keys is not None:
            keys.connect(self.socket, link)
        self.socket.setsockopt(zmq.IMMEDIATE, 1)
        self.socket.setsockopt(zmq.RECONNECT_IVL, 50)
        self.socket.setsockopt(zmq.RECONNECT_IVL_MAX, 200)
        self.socket.setsockopt(zmq.IDENTITY, identity)
        self._events = self.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._address = ""
        self.follow(address)

    def follow(self, address: str) -> None:
        """Connect to `address` instead of the previous one; empty disconnects."""
        if address == self._address:
            return
        if self._address:
            self.socket.disconnect(self._address)
        if address:
            self.socket.connect(address)
        self._address = address

    def broke(self) -> bool:
        """Return True once after the connection has broken: messages in flight may be lost in both
        directions. Check it before reading."""
        broken = False
        while _readable(self._events):
            self._events.recv_multipart()
            broken = True
        return broken

    def close(self) -> None:
        self.socket.disable_monitor()
        self._events.close(linger=0)
        super().close()

    def send(self, message: Message, envelope: Envelope | None = None) -> bool:
        """Send without blocking. Returns False if the server is not connected."""
        try:
            self.socket.send_multipart(encode(message, envelope), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def drain(self, limit: int = 1000) -> Iterator[Received]:
        """Yield received messages, at most `limit`."""
        for _ in range(limit):
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            received = self._decode(b"", frames)
            if received is not None:
                yield received


class AsyncClient(Client):
    """A `Client` for asyncio: `post` and `receive` instead of `send` and `drain`.

    Only one task may receive. ZeroMQ's descriptor is edge-triggered, and any call on the socket may
    consume the edge, so every send also checks for received messages. `zmq.asyncio` supports any
    number of tasks, at several times the cost per message.
    """

    def __init__(
        self, link: Link, address: str, identity: bytes, keys: CurveKeys | None = None
    ) -> None:
        super().__init__(link, address, identity, keys)
        self._descriptor = int(self.socket.getsockopt(zmq.FD))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._arrival: asyncio.Future[None] | None = None

    async def post(self, message: Message, envelope: Envelope | None = None) -> bool:
        """Send without waiting. Returns False if the server is not connected."""
        accepted = self.send(message, envelope)
        self._look()
        return accepted

    async def receive(self) -> Received:
        """Wait for the next valid message."""
        while True:
            if not _readable(self.socket):
                await self._wait()
            for received in self.drain(limit=1):
                return received

    async def _wait(self) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._descriptor, self._look)
        self._arrival = self._loop.create_future()
        try:
            await self._arrival
        finally:
            self._arrival = None

    def _look(self) -> None:
        """Wake the receiver if a message is available. Reading the event state also resets the
        descriptor."""
        if _readable(self.socket) and self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def close(self) -> None:
        """Close the socket; unsent messages are discarded."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._descriptor)
        super().close()


def _readable(socket: zmq.Socket[bytes]) -> bool:
    return bool(int(socket.getsockopt(zmq.EVENTS)) & _ARRIVED)


def wait(endpoints: tuple[Server | Client, ...], seconds: float, file: int | None = None) -> bool:
    """Wait until an endpoint has a message, a file descriptor is readable, or `seconds` have
    passed. Returns False if they have."""
    poller = zmq.Poller()
    if file is not None:
        poller.register(file, zmq.POLLIN)
    for endpoint in endpoints:
        poller.register(endpoint.socket, zmq.POLLIN)
    return bool(poller.poll(max(0, int(seconds * 1000))))
