"""The side of a fork server that forks; its supervisor is this test."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks to its parent")
SERVER = """
import os, sys
from baton.process.fork_server import ForkServer
server = ForkServer()
assert server.wait(0) is None
print("loaded", flush=True)
command = server.wait()
print(*command, os.getppid(), os.getpgid(0) == os.getpid(), flush=True)
raise SystemExit(len(os.read(0, 9)))
"""


@pytest.fixture
def served() -> Iterator[tuple[subprocess.Popen[str], socket.socket]]:
    """A server that has loaded, and the socket that leads to it."""
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-c", SERVER]
        made = subprocess.Popen(command, stdin=theirs.fileno(), stdout=subprocess.PIPE, text=True)
    with made, ours:
        assert made.stdout is not None and made.stdout.readline() == "loaded\n"
        yield made, ours
        made.kill()


def test_every_request_is_a_process_with_a_socket_of_its_own(
    served: tuple[subprocess.Popen[str], socket.socket],
) -> None:
    server, line = served
    assert server.stdout is not None
    for name in ("one", "two"):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            socket.send_fds(line, [f'["worker", "{name}"]\n'.encode()], [theirs.fileno()])
            theirs.close()
            pid = int(ours.recv(99))
            assert server.stdout.readline().split() == ["worker", name, str(os.getpid()), "True"]
            ours.send(b"12345")
            assert os.waitpid(pid, 0)[1] >> 8 == 5
            assert ours.recv(99) == b"", "the server has kept it open"
    assert server.poll() is None


@pytest.mark.parametrize("last", [b"", b'["worker", "o'])
def test_it_ends_with_its_supervisor(
    served: tuple[subprocess.Popen[str], socket.socket], last: bytes
) -> None:
    server, line = served
    line.send(last)
    line.close()
    assert server.wait(60) == -signal.SIGKILL
