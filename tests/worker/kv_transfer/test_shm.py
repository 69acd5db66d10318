from __future__ import annotations

import mmap
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from baton.protocol import Block
from baton_worker.config import Config
from baton_worker.kv_transfer.shm import Shm, _sweep
from baton_worker.kv_transfer.transport import Size, TransportError, UnusableError

SIZE = Size(4, mmap.PAGESIZE)
KILLED = """
import os, signal, sys
from pathlib import Path
from baton_worker.config import Config
from baton_worker.kv_transfer.shm import Shm
from baton_worker.kv_transfer.transport import Size
sender = Shm(Config(run_dir=Path(sys.argv[1]))).send(Size(4, 1 << 20))
sender.view(0, 4)[:] = 7
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def shm(run_dir: Path) -> Iterator[Shm]:
    made = Shm(Config(run_dir=run_dir))
    yield made
    made.close()


def block(size: int) -> Block:
    return Block(1, 0, 0, "uint8", 0, b"", size)


def test_both_see_the_same_memory_and_only_the_source_writes(shm: Shm) -> None:
    sender = shm.send(SIZE)
    receiver = shm.receive(sender.terms, SIZE)
    sender.view(3, 4)[:] = [1, 2, 3, 4]
    assert sender.data(3, 4) == b""
    seen = receiver.take(block(4), 3)
    assert seen.tolist() == [1, 2, 3, 4]
    sender.view(3, 4)[0] = 9
    assert seen[0] == 9, "it is no copy"
    with pytest.raises(ValueError, match="read-only"):
        seen[0] = 0


def test_a_ticket_is_good_for_one_lane_once(shm: Shm) -> None:
    sender = shm.send(SIZE)
    shm.receive(sender.terms, SIZE)
    with pytest.raises(TransportError):
        shm.receive(sender.terms, SIZE)
    late = shm.send(SIZE)
    late.close()
    with pytest.raises(TransportError):
        shm.receive(late.terms, SIZE)


@pytest.mark.parametrize("terms", [b"", b"x" * 16, b"x" * 16 + b"../x.sock", b"x" * 16 + b"\xff"])
def test_terms_that_nobody_gave_are_refused(shm: Shm, terms: bytes) -> None:
    with pytest.raises(TransportError):
        shm.receive(terms, SIZE)


def test_a_ticket_is_not_guessed(shm: Shm) -> None:
    sender = shm.send(SIZE)
    with pytest.raises(TransportError, match="the source gives none"):
        shm.receive(b"x" * 16 + sender.terms[16:], SIZE)
    assert shm.receive(sender.terms, SIZE).take(block(1), 0).tolist() == [0]


def test_memory_of_another_size_is_refused(shm: Shm) -> None:
    sender = shm.send(SIZE)
    with pytest.raises(TransportError, match="not the size"):
        shm.receive(sender.terms, Size(8, mmap.PAGESIZE))


def test_memory_that_could_shrink_is_refused(shm: Shm) -> None:
    loose = os.memfd_create("loose", os.MFD_ALLOW_SEALING)
    os.ftruncate(loose, SIZE.total)
    name = Path(shm._server.path).name.encode()
    with pytest.raises(TransportError, match="not sealed"):
        shm.receive(shm._server.keep(loose) + name, SIZE)
    os.close(loose)


def test_another_user_gets_nothing(shm: Shm, monkeypatch: pytest.MonkeyPatch) -> None:
    sender = shm.send(SIZE)
    monkeypatch.setattr("baton_worker.kv_transfer.shm.is_own_user", lambda peer: False)
    with pytest.raises(TransportError, match="gives none"):
        shm.receive(sender.terms, SIZE)


def test_a_worker_that_is_killed_leaves_no_memory_behind(run_dir: Path) -> None:
    before = set(os.listdir("/dev/shm"))
    ended = subprocess.run([sys.executable, "-c", KILLED, str(run_dir)], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert set(os.listdir("/dev/shm")) <= before
    assert [path.suffix for path in run_dir.iterdir()] == [".sock"]
    _sweep(run_dir)
    assert not list(run_dir.iterdir())


def test_sockets_of_the_living_stay(shm: Shm, run_dir: Path) -> None:
    _sweep(run_dir)
    sender = shm.send(SIZE)
    assert shm.receive(sender.terms, SIZE)


def test_closing_takes_the_socket_away(run_dir: Path) -> None:
    made = Shm(Config(run_dir=run_dir))
    [path] = run_dir.iterdir()
    made.close()
    assert not list(run_dir.iterdir())
    with socket.socket(socket.AF_UNIX) as probe, pytest.raises(FileNotFoundError):
        probe.connect(str(path))


def test_where_there_is_no_such_memory_it_says_so(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(UnusableError, match="needs Linux"):
        Shm(Config(run_dir=run_dir))
