"""The supervisor's control socket, through which operators on this host change the workers.

It is in the run directory, which only its owner may enter (mode 0700, otherwise the socket is not
bound). It has no network address, so it needs no key.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Self

from baton.errors import SettingsError, Unavailable
from baton.net.discovery import socket_path
from baton.net.handshake import BEAT_SECONDS, incarnation
from baton.net.sockets import Client, Server, wait
from baton.net.topology import CONTROL
from baton.protocol import Message, Resize, ResizeDone, SetRole
from baton_ops.supervisor.worker_pool import WorkerPool

_SECONDS = 5.0
"""Time limit for the supervisor's reply."""


class ControlSocket(AbstractContextManager["ControlSocket"]):
    """Server side. Life cycle: call `turn` repeatedly, within its context."""

    def __init__(self, pool: WorkerPool, run_dir: Path) -> None:
        self._pool = pool
        self._server = Server(CONTROL, socket_path(run_dir, CONTROL))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: object, trace: TracebackType | None
    ) -> None:
        self._server.close()

    def turn(self) -> None:
        """Handle the requests that arrived since the last call."""
        for received in self._server.drain():
            self._server.send(received.peer, self._done(received.message))

    def _done(self, message: Message) -> ResizeDone:
        reason = ""
        try:
            if isinstance(message, Resize):
                self._pool.resize(message.counts)
            elif isinstance(message, SetRole):
                self._pool.assign(message.name, message.role)
        except SettingsError as error:
            reason = error.message
        return ResizeDone(dict(self._pool.workers), reason)


def supervised(run_dir: Path) -> bool:
    """Return whether a supervisor has a socket in `run_dir`."""
    return Path(socket_path(run_dir, CONTROL).removeprefix("ipc://")).exists()


def order(run_dir: Path, message: Resize | SetRole, seconds: float = _SECONDS) -> dict[str, str]:
    """Send a request to the supervisor. Returns the roles of its workers by name.

    Raises `SettingsError` when it rejects the request, `Unavailable` when it does not reply.
    """
    deadline, was_sent = time.monotonic() + seconds, False
    identity = f"operator-{incarnation()}".encode()
    with Client(CONTROL, socket_path(run_dir, CONTROL), identity) as client:
        while time.monotonic() < deadline:
            was_sent = was_sent or client.send(message)
            wait((client,), BEAT_SECONDS)
            for received in client.drain():
                if isinstance(received.message, ResizeDone):
                    if received.message.reason:
                        raise SettingsError(received.message.reason)
                    return received.message.workers
    raise Unavailable(f"No supervisor answers in {run_dir}: is `baton serve` running with it?")
