"""Health checks with the real handshake: a responsive loop, and a silent one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from baton import __version__
from baton.errors import Unavailable
from baton.net.discovery import socket_path
from baton.net.handshake import PeerTable, incarnation
from baton.net.sockets import Received, Server, wait
from baton.net.topology import FLEET, TOKENIZE, Link
from baton.protocol import Beat, Hello, Stats, WorkerStats
from baton.settings import Settings
from baton_ops.commands import health
from baton_ops.commands.health import answers, listed, own_address

Answer = Callable[[Server, Received], None]


@contextmanager
def serving(link: Link, folder: Path, answer: Answer) -> Iterator[str]:
    """A server of `link` whose loop runs in a thread of its own."""
    address = socket_path(folder, link)
    stop, bound = threading.Event(), threading.Event()

    def loop() -> None:
        with Server(link, address) as server:
            bound.set()
            while not stop.is_set():
                wait((server,), 0.02)
                for received in server.drain():
                    answer(server, received)

    thread = threading.Thread(target=loop)
    thread.start()
    bound.wait()
    yield address
    stop.set()
    thread.join()


def roster(service: str) -> PeerTable:
    return PeerTable(Hello(service, f"{service}-1", incarnation(), __version__))


def silent(server: Server, received: Received) -> None:
    """A loop that is stuck."""


def test_a_server_that_answers_a_stranger_is_healthy(run_dir: Path) -> None:
    book = roster("tokenizer")

    def answer(server: Server, received: Received) -> None:
        assert isinstance(received.message, Beat)
        server.send(received.peer, book.beat(received.message, time.monotonic()))

    with serving(TOKENIZE, run_dir, answer) as address:
        answers(TOKENIZE, address)
    assert not book.peers, "a health check must not join as a peer"


def test_a_server_whose_loop_is_stuck_is_not(run_dir: Path) -> None:
    with (
        serving(TOKENIZE, run_dir, silent) as address,
        pytest.raises(Unavailable, match="tokenizer does not answer"),
    ):
        answers(TOKENIZE, address, seconds=0.3)


def test_nobody_there_is_not_healthy(run_dir: Path) -> None:
    with pytest.raises(Unavailable, match="does not answer"):
        answers(TOKENIZE, socket_path(run_dir, TOKENIZE), seconds=0.3)


def stats(*states: tuple[str, str]) -> Stats:
    workers = tuple(
        WorkerStats(name, "both", state, "cpu", "float32", 0, 8, 8, 0, 0.0, 0.0, 0, 0)
        for name, state in states
    )
    return Stats(1, 0, 0, 0, 0, 0, 0, 0.0, 0.0, workers=workers)


def scheduler_that_says(message: Stats) -> Answer:
    def answer(server: Server, received: Received) -> None:
        if isinstance(received.message, Hello):
            server.send(received.peer, message)

    return answer


def test_a_worker_that_the_scheduler_calls_ready_is_healthy(run_dir: Path) -> None:
    says = scheduler_that_says(stats(("worker-other-1", "hung"), ("worker-here-7", "ready")))
    with serving(FLEET, run_dir, says) as address:
        assert listed(address, "worker-here-").name == "worker-here-7"


def test_a_hung_worker_is_not_healthy(run_dir: Path) -> None:
    says = scheduler_that_says(stats(("worker-here-7", "hung")))
    with (
        serving(FLEET, run_dir, says) as address,
        pytest.raises(Unavailable, match="it is hung"),
    ):
        listed(address, "worker-here-", seconds=0.5)


def test_a_worker_that_has_not_joined_is_not_healthy(run_dir: Path) -> None:
    says = scheduler_that_says(stats(("worker-other-1", "ready")))
    with (
        serving(FLEET, run_dir, says) as address,
        pytest.raises(Unavailable, match="has not joined"),
    ):
        listed(address, "worker-here-", seconds=0.5)


def test_a_gateway_that_does_not_answer_is_not_healthy() -> None:
    with pytest.raises(Unavailable, match="gateway does not answer"):
        health.page_says_ready(1)


def test_a_wildcard_address_is_asked_on_loopback(run_dir: Path) -> None:
    class Config(Settings, prefix="tokenizer"):
        bind: str = "tcp://*:5701"

    assert own_address(Config(run_dir=run_dir), TOKENIZE) == "tcp://127.0.0.1:5701"
    assert own_address(Settings(run_dir=run_dir), TOKENIZE) == socket_path(run_dir, TOKENIZE)


@pytest.mark.parametrize("argv", [[], ["nothing"], ["worker", "--no-such-flag"]])
def test_wrong_use_fails(argv: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["health", *argv])
    with pytest.raises(SystemExit) as end:
        health.main()
    assert end.value.code == 2
