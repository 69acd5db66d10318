"""The target side: pull what other workers hold while steps run."""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor

from baton.logs import logger
from baton.net.curve import CurveKeys
from baton.protocol import Pull, Pulled
from baton_worker.kv_transfer.connection import TransferConnection
from baton_worker.kv_transfer.content import Content, Writer
from baton_worker.kv_transfer.transport import (
    TransferError,
    Transport,
    TransportError,
)

_MOST_PULLS = 4
"""Concurrent pulls; further ones are queued."""
_MAX_IDLE_SECONDS = 30.0
"""Seconds for which an idle connection is kept for the next pull from the same source."""

log = logger(__name__)


class Importer:
    """Life cycle: `start` per pull, poll `finished`, `reset` for a new scheduler, `close`."""

    def __init__(
        self,
        content: Content,
        name: str,
        transports: dict[str, Transport],
        host: str,
        keys: CurveKeys | None = None,
    ) -> None:
        self._content, self._name, self._keys = content, name, keys
        self._transports, self._host = transports, host
        self._excluded: set[tuple[str, str]] = set()
        """(address, transport) pairs that have failed and are not offered to that source again."""
        self._idle: deque[TransferConnection] = deque()
        """Idle connections, most recently used last."""
        self._lock = threading.Lock()
        self._done: deque[Pulled] = deque()
        self._running = 0
        self._stopped = threading.Event()
        self._pool = ThreadPoolExecutor(_MOST_PULLS, thread_name_prefix="importer")

    @property
    def busy(self) -> bool:
        """Whether a pull is running or its result has not been returned yet."""
        return self._running > 0

    def start(self, pull: Pull) -> None:
        """Start a pull in the background."""
        self._running += 1
        self._pool.submit(self._run, pull)

    def finished(self) -> list[Pulled]:
        """Pulls that have ended since the last call."""
        ended = [self._done.popleft() for _ in range(len(self._done))]
        self._running -= len(ended)
        return ended

    def reset(self) -> None:
        """Wait for all pulls to end before their pages are reassigned, and discard the results."""
        self.close()
        self._pool = ThreadPoolExecutor(_MOST_PULLS, thread_name_prefix="importer")
        self._stopped.clear()
        self._done.clear()
        self._excluded.clear()
        self._running = 0

    def close(self) -> None:
        """End all pulls and connections."""
        self._stopped.set()
        self._pool.shutdown(wait=True, cancel_futures=True)
        while self._idle:
            self._idle.popleft().close()

    def _run(self, pull: Pull) -> None:
        started, reason, size = time.monotonic(), "", 0
        connection: TransferConnection | None = None
        try:
            writer = self._writer(pull)
            connection = self._connection(pull.address)
            size = self._pull(connection, pull, writer)
        except TransferError as error:
            reason = str(error)
        except Exception:
            log.exception("pull %d failed", pull.id)
            reason = "the target failed"
        took = int((time.monotonic() - started) * 1e6)
        transport = connection.transport if connection is not None else ""
        self._release(connection, reason)
        self._done.append(Pulled(pull.epoch, pull.id, reason, size, took, transport))

    def _writer(self, pull: Pull) -> Writer:
        try:
            return self._content.writer(pull)
        except ValueError as error:
            raise TransferError(str(error)) from error

    def _connection(self, address: str) -> TransferConnection:
        """An idle connection to the source, or a new one that is not open yet."""
        with self._lock:
            self._expire()
            for connection in self._idle:
                if connection.address == address:
                    self._idle.remove(connection)
                    return connection
        return TransferConnection(self._content, self._name, address, self._stopped, self._keys)

    def _expire(self) -> None:
        """Close connections that have been idle too long: either side may be gone."""
        oldest = time.monotonic() - _MAX_IDLE_SECONDS
        while self._idle and self._idle[0].used < oldest:
            self._idle.popleft().close()

    def _pull(self, connection: TransferConnection, pull: Pull, writer: Writer) -> int:
        if not connection.transport:
            self._open(connection, pull)
        try:
            return connection.run(pull, writer.extents(), writer.write)
        except TransportError as error:
            self._exclude(connection, str(error))
            raise

    def _open(self, connection: TransferConnection, pull: Pull) -> None:
        """Open a connection over the first transport that can be opened on both sides."""
        while True:
            try:
                return connection.open(pull, self._offered(pull.address), self._host)
            except TransportError as error:
                if connection.transport == "tcp":
                    raise
                self._exclude(connection, str(error))

    def _offered(self, address: str) -> dict[str, Transport]:
        """Transports that have not failed with this source."""
        return {n: t for n, t in self._transports.items() if (address, n) not in self._excluded}

    def _exclude(self, connection: TransferConnection, reason: str) -> None:
        """Stop offering a failed transport to this source. `tcp` is always kept."""
        if connection.transport != "tcp":
            self._excluded.add((connection.address, connection.transport))
            log.warning(
                "no KV of %s over %s any more: %s",
                connection.address,
                connection.transport,
                reason,
            )

    def _release(self, connection: TransferConnection | None, reason: str) -> None:
        """Keep a connection after a successful pull, for the next one."""
        if connection is not None and reason:
            connection.close()
        elif connection is not None:
            with self._lock:
                self._idle.append(connection)
