"""The source side: serve what the scheduler has granted."""

from __future__ import annotations

import hmac
import threading
import time
from dataclasses import dataclass

import numpy as np
from xxhash import xxh3_64_intdigest

from baton.errors import SettingsError
from baton.logs import logger
from baton.net.curve import CurveKeys
from baton.net.sockets import Server, wait
from baton.net.topology import PAGES
from baton.protocol import Block, Fetch, Grant, Message, Missing, Offer, Open, Opened
from baton.protocol.transfer import Denial
from baton_worker.kv_transfer.content import Content, Reader
from baton_worker.kv_transfer.transport import (
    Sender,
    Size,
    Transport,
    UnusableError,
    choose,
    offers,
)
from baton_worker.kv_transfer.wire_format import Extent

PLACES = 8
"""Blocks of one connection that are requested or not read yet, so that several layers are in
flight."""
_TOKEN_BYTES = 16
_IDLE_SECONDS = 0.05
_POLL_SECONDS = 0.001
"""Poll interval in seconds while a connection is in use: some transports need calls to progress."""
_MAX_IDLE_SECONDS = 60.0
"""A connection idle for this many seconds belongs to a worker that has exited."""
_MOST_CONNECTIONS = 64

log = logger(__name__)


@dataclass(slots=True)
class _Connection:
    sender: Sender
    used: float


class Exporter(threading.Thread):
    """Answers `Open` and `Fetch` in a thread of its own while steps run.

    Its reads are stable: a grant covers tokens whose KV is final, and the scheduler keeps the pages
    until the target has sent `Pulled`. A grant may end while its pages are read, so it is looked up
    again before the block is announced.
    """

    def __init__(
        self,
        content: Content,
        address: str,
        transports: dict[str, Transport],
        host: str,
        *,
        trusted_network: bool = False,
        keys: CurveKeys | None = None,
    ) -> None:
        super().__init__(name="exporter", daemon=True)
        self._content, self._host = content, host
        self._transports, self._offers = transports, offers(transports)
        self._server = Server(PAGES, address, trusted_network=trusted_network, keys=keys)
        self._size = Size(PLACES, content.place_bytes)
        self._grants: dict[int, tuple[Grant, Reader]] = {}
        self._connections: dict[bytes, _Connection] = {}
        """Connections by the target's identity on the socket."""
        self._stopped = threading.Event()
        self.refused = 0
        """Number of refused requests: wrong token or epoch, or tokens outside the grant."""

    @property
    def address(self) -> str:
        """Address of the socket, with a wildcard port resolved."""
        return self._server.address

    @property
    def num_connections(self) -> int:
        """Number of open connections."""
        return len(self._connections)

    def grant(self, grant: Grant) -> None:
        """Allow the holder of the token to read what is granted.

        Raises:
            SettingsError: the grant does not fit what this worker holds.
        """
        if len(grant.token) != _TOKEN_BYTES:
            raise SettingsError(f"Grant {grant.id} has no token of {_TOKEN_BYTES} bytes.")
        try:
            self._grants[grant.id] = (grant, self._content.reader(grant))
        except ValueError as error:
            raise SettingsError(f"Grant {grant.id} does not fit: {error}.") from error

    def revoke(self, ids: list[int]) -> None:
        """Revoke these grants."""
        for number in ids:
            self._grants.pop(number, None)

    def reset(self) -> None:
        """Revoke all grants: their sequences no longer exist."""
        self._grants.clear()

    def run(self) -> None:
        with self._server as server:
            while not self._stopped.is_set():
                wait((server,), self._wait_seconds())
                for received in server.drain():
                    answer = self._answer(received.peer, received.message)
                    if answer is not None:
                        server.send(received.peer, answer)
                self._poll_connections()
            for peer in list(self._connections):
                self._close(peer)

    def stop(self) -> None:
        """Stop the thread and close its socket and connections."""
        self._stopped.set()
        self.join(timeout=2.0)

    def _wait_seconds(self) -> float:
        latest = max((connection.used for connection in self._connections.values()), default=0.0)
        return _POLL_SECONDS if time.monotonic() - latest < _IDLE_SECONDS else _IDLE_SECONDS

    def _answer(self, peer: bytes, message: Message) -> Message | None:
        if isinstance(message, Fetch):
            return self._fetch(peer, message)
        if isinstance(message, Open):
            return self._open(peer, message)
        self._close(peer)
        return None

    def _open(self, peer: bytes, request: Open) -> Opened:
        """Open a connection for a target that holds a grant."""
        reason = self._denies(request)
        if reason:
            return Opened(request.id, reason=reason)
        if request.layout != self._content.layout:
            return Opened(request.id, reason="its pages hold something else")
        self._close(peer)
        if len(self._connections) >= _MOST_CONNECTIONS:
            return Opened(request.id, reason=f"it has {_MOST_CONNECTIONS} connections already")
        near = request.host == self._host
        while name := choose(self._offers, request.offers, near=near):
            try:
                sender = self._transports[name].send(self._size)
            except UnusableError as error:
                log.warning("no KV passes over %s: %s", name, error.message)
                del self._offers[name]
                continue
            self._connections[peer] = _Connection(sender, time.monotonic())
            return Opened(request.id, name, sender.terms, *self._size)
        return Opened(request.id, reason=self._lacks(request.offers, near))

    def _lacks(self, theirs: tuple[Offer, ...], near: bool) -> str:
        here, there = ", ".join(self._offers), ", ".join(offer.name for offer in theirs)
        where = "one host" if near else "two hosts"
        return f"no transport in common on {where}: the source has {here}, the target {there}"

    def _fetch(self, peer: bytes, fetch: Fetch) -> Block | Missing:
        reason = self._denies(fetch)
        connection = self._connections.get(peer)
        if not reason and (connection is None or not 0 <= fetch.place < PLACES):
            reason = "refused"
        entry = self._grants.get(fetch.id)
        extent = Extent(fetch.layer, fetch.start, fetch.end)
        if reason or entry is None or not entry[1].covers(extent):
            return self._missing(fetch, reason or "refused")
        assert connection is not None
        block = self._put(connection, fetch, entry[1])
        if self._grants.get(fetch.id) is not entry:
            return self._missing(fetch, "unknown")
        return block

    def _put(self, connection: _Connection, fetch: Fetch, reader: Reader) -> Block:
        """Read an extent into a slot of the transfer buffer."""
        connection.used = time.monotonic()
        extent = Extent(fetch.layer, fetch.start, fetch.end)
        size = self._content.block_bytes(extent)
        buffer = connection.sender.view(fetch.place, size)
        reader.read(extent, buffer)
        # Blocks that stay on a device are not read by the host; its memory corrects its own errors.
        check = xxh3_64_intdigest(buffer.data) if isinstance(buffer, np.ndarray) else 0
        data = connection.sender.data(fetch.place, size)
        dtype = self._content.dtype_name(fetch.layer)
        return Block(fetch.id, fetch.layer, fetch.start, dtype, check, data, size)

    def _denies(self, message: Open | Fetch) -> Denial | None:
        """Why no grant covers the request; None if one does."""
        entry = self._grants.get(message.id)
        if entry is None:
            return "unknown"
        grant = entry[0]
        if grant.epoch != message.epoch:
            return "stale"
        return None if hmac.compare_digest(grant.token, message.token) else "refused"

    def _missing(self, fetch: Fetch, reason: Denial) -> Missing:
        if reason != "unknown":
            self.refused += 1
            log.warning("refused to send KV of transfer %d: they are not granted", fetch.id)
        return Missing(fetch.id, fetch.layer, fetch.start, reason)

    def _poll_connections(self) -> None:
        oldest = time.monotonic() - _MAX_IDLE_SECONDS
        for peer, connection in list(self._connections.items()):
            connection.sender.poll()
            if connection.used < oldest:
                self._close(peer)

    def _close(self, peer: bytes) -> None:
        connection = self._connections.pop(peer, None)
        if connection is not None:
            connection.sender.close()
