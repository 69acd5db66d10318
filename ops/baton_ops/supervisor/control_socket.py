"""The supervisor's socket: an operator of this host changes the crew through it.

It lies in the run directory, which only its owner can enter (mode 0700, or it is not bound), and
nowhere else: there is no address and no key for it.
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
"""How long a supervisor may take to answer."""


class ControlSocket(AbstractContextManager["ControlSocket"]):
    """The supervisor's side. Life cycle: `turn` often, within its context."""

    def __init__(self, crew: WorkerPool, run_dir: Path) -> None:
        self._crew = crew
        self._server = Server(CONTROL, socket_path(run_dir, CONTROL))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: object, trace: TracebackType | None
    ) -> None:
        self._server.close()

    def turn(self) -> None:
        """Do what was asked for since the last turn."""
        for received in self._server.drain():
            self._server.send(received.peer, self._done(received.message))

    def _done(self, message: Message) -> ResizeDone:
        reason = ""
        try:
            if isinstance(message, Resize):
                self._crew.resize(message.counts)
            elif isinstance(message, SetRole):
                self._crew.assign(message.name, message.role)
        except SettingsError as error:
            reason = error.message
        return ResizeDone(dict(self._crew.workers), reason)


def supervised(run_dir: Path) -> bool:
    """Whether a supervisor has its socket there."""
    return Path(socket_path(run_dir, CONTROL).removeprefix("ipc://")).exists()


def order(run_dir: Path, message: Resize | SetRole, seconds: float = _SECONDS) -> dict[str, str]:
    """Have a supervisor do something. Returns the roles of its workers by their names.

    Raises `SettingsError` with its reason when it will not, `Unavailable` when none answers.
    """
    deadline, sent = time.monotonic() + seconds, False
    identity = f"operator-{incarnation()}".encode()
    with Client(CONTROL, socket_path(run_dir, CONTROL), identity) as client:
        while time.monotonic() < deadline:
            sent = sent or client.send(message)
            wait((client,), BEAT_SECONDS)
            for received in client.drain():
                if isinstance(received.message, ResizeDone):
                    if received.message.reason:
                        raise SettingsError(received.message.reason)
                    return received.message.workers
    raise Unavailable(f"No supervisor answers in {run_dir}: is `baton serve` running with it?")
