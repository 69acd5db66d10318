"""A server at a Unix socket: one process after the other, whatever one of them does."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from baton.process.local_server import LocalServer, is_own_user, peer_of


class Echo(LocalServer):
    """Answers with what it was sent."""

    def __init__(self, path: Path) -> None:
        super().__init__("echoes", str(path), socket.SOCK_SEQPACKET, 0.3)

    def serve(self, peer: socket.socket) -> None:
        assert is_own_user(peer) and peer_of(peer)[0] == os.getpid()
        peer.send(peer.recv(9))


def ask(server: Echo, data: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        peer.settimeout(60)
        peer.connect(server.path)
        peer.send(data)
        return peer.recv(9)


def test_a_silent_peer_delays_the_next_and_no_more(run_dir: Path) -> None:
    path = run_dir / "echo.sock"
    path.touch()  # Left by a process that was killed.
    server = Echo(path)
    server.listen()
    server.start()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.connect(server.path)
        assert ask(server, b"one") == b"one"
    assert ask(server, b"two") == b"two"
    server.stop()
    assert not path.exists() and not server.is_alive()


def test_a_socket_that_cannot_be_bound_is_closed(run_dir: Path) -> None:
    server = Echo(run_dir / "nowhere" / "echo.sock")
    with pytest.raises(OSError, match="No such file"):
        server.listen()
    server.stop()
