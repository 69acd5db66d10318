from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys

import msgspec
import pytest

from baton.protocol import Block
from baton_worker.config import Config
from baton_worker.kv_transfer import nixl
from baton_worker.kv_transfer.nixl import Nixl
from baton_worker.kv_transfer.nixl_buffers import Terms
from baton_worker.kv_transfer.transport import (
    Size,
    Transport,
    TransportError,
    UnusableError,
)
from tests.worker.kv_transfer import conftest

pytest.importorskip("nixl")
SIZE = Size(4, 4096)
SOURCE = """
import sys, time
from baton_worker.config import Config
from baton_worker.kv_transfer.nixl import Nixl
from baton_worker.kv_transfer.transport import Size
sender = Nixl(Config(role="prefill")).send(Size(4, 4096))
sender.view(2, 4)[:] = [1, 2, 3, 4]
print(sender.terms.hex(), flush=True)
while True:
    sender.poll()
    time.sleep(0.001)
"""


def block(size: int) -> Block:
    return Block(1, 0, 0, "uint8", 0, b"", size)


@pytest.fixture
def target() -> Transport:
    return conftest.agent("target")


def test_a_block_is_read_from_another_process_and_lost_with_it(target: Transport) -> None:
    """Whole bytes, then the end of the source: an error, no hang, and no memory left behind."""
    before = set(os.listdir("/dev/shm"))
    command = [sys.executable, "-c", SOURCE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as source:
        assert source.stdout is not None
        receiver = target.receive(bytes.fromhex(source.stdout.readline()), SIZE)
        assert receiver.take(block(4), 2).tolist() == [1, 2, 3, 4]
        source.kill()
        assert source.wait() == -signal.SIGKILL
    with pytest.raises(TransportError, match="could not read"):
        receiver.take(block(4), 2)
    receiver.close()
    assert set(os.listdir("/dev/shm")) <= before


def test_lanes_of_one_pair_are_apart(target: Transport) -> None:
    source = conftest.agent("source")
    first, second = source.send(SIZE), source.send(SIZE)
    one, two = (target.receive(sender.terms, SIZE) for sender in (first, second))
    first.view(0, 2)[:] = [1, 1]
    second.view(0, 2)[:] = [2, 2]
    assert one.take(block(2), 0).tolist() == [1, 1]
    assert two.take(block(2), 0).tolist() == [2, 2]
    one.close()
    assert two.take(block(2), 0).tolist() == [2, 2]
    two.close()
    first.close()
    second.close()


def test_nothing_beyond_a_lane_is_read(target: Transport) -> None:
    sender = conftest.agent("source").send(SIZE)
    terms = msgspec.msgpack.decode(sender.terms, type=Terms)
    terms.address = 4096  # Memory of the source that it has registered for nobody.
    receiver = target.receive(msgspec.msgpack.encode(terms), SIZE)
    with pytest.raises(TransportError, match="could not read"):
        receiver.take(block(8), 0)
    receiver.close()
    sender.close()


@pytest.mark.parametrize("terms", [b"", b"\x93\xa1x\xc4\x01x\x01", b"\xff"])
def test_terms_that_nobody_gave_are_refused(target: Transport, terms: bytes) -> None:
    with pytest.raises(TransportError, match="cannot be reached"):
        target.receive(terms, SIZE)


def test_metadata_of_somebody_else_are_refused(target: Transport) -> None:
    sender = conftest.agent("source").send(SIZE)
    terms = msgspec.msgpack.decode(sender.terms, type=Terms)
    terms.agent = "another"
    with pytest.raises(TransportError, match="it says that it is another"):
        target.receive(msgspec.msgpack.encode(terms), SIZE)
    sender.close()


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnusableError, match=r"pip install 'baton-serve\[nixl\]'"):
        Nixl(Config())


def test_what_does_not_load_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise ImportError("libnixl.so: wrong ELF class")

    monkeypatch.setattr(nixl.importlib, "import_module", broken)
    with pytest.raises(UnusableError, match="wrong ELF class"):
        Nixl(Config(role="decode"))


def test_it_leaves_the_host_only_where_the_network_is_trusted() -> None:
    assert Nixl(Config()).reach == "host"
    assert Nixl(Config(trusted_network=True)).reach == "network"
