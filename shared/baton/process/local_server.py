"""A server for processes of one host: a Unix socket whose replies may contain file descriptors."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from abc import ABC, abstractmethod

from baton.logs import logger

_CREDENTIALS = struct.Struct("3i")

log = logger(__name__)


class LocalServer(threading.Thread, ABC):
    """Serves one process after the other. Life cycle: `listen`, `start`, `stop`."""

    def __init__(self, name: str, path: str, kind: socket.SocketKind, seconds: float) -> None:
        """
        Args:
            name: what processes request, in the plural; also the name of the thread.
            path: of the socket.
            seconds: time limit of one exchange.
        """
        super().__init__(name=name, daemon=True)
        self.path, self._seconds = path, seconds
        self._socket = socket.socket(socket.AF_UNIX, kind)

    def listen(self) -> None:
        """Bind the socket, which only the user of this process may connect to."""
        # A process that was killed leaves its socket behind.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        try:
            self._socket.bind(self.path)
            os.chmod(self.path, 0o600)
            self._socket.listen()
        except OSError:
            self._socket.close()
            raise

    def run(self) -> None:
        """Serve until `stop`."""
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:  # Closed.
                return
            with peer:
                try:
                    peer.settimeout(self._seconds)
                    self.serve(peer)
                except OSError as error:
                    log.warning(
                        "a process closed its connection during a request for %s: %s",
                        self.name,
                        error,
                    )

    @abstractmethod
    def serve(self, peer: socket.socket) -> None:
        """Read one request and answer it. May raise `OSError`."""

    def stop(self) -> None:
        """Stop the thread and remove the socket."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # Wakes `accept`; closing alone does not.
        self._socket.close()
        if self.is_alive():
            self.join(timeout=self._seconds)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)


def peer_of(peer: socket.socket) -> tuple[int, int]:
    """Process and user id of the peer of a Unix socket."""
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(credentials)
    return int(pid), int(user)


def is_own_user(peer: socket.socket) -> bool:
    """Whether the peer runs as the user of this process."""
    return peer_of(peer)[1] == os.geteuid()
