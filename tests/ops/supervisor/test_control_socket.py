"""Control requests through the run directory."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest

from baton.errors import SettingsError, Unavailable
from baton.net.discovery import socket_path
from baton.net.sockets import Client
from baton.net.topology import CONTROL, FLEET
from baton.protocol import Beat, Resize, SetRole
from baton_ops.supervisor.control_socket import ControlSocket, order, supervised
from baton_ops.supervisor.worker_pool import WorkerPool


class Book:
    """A worker pool without processes."""

    def __init__(self) -> None:
        self.workers = {"decode-1": "decode"}

    def resize(self, counts: dict[str, int]) -> None:
        if "sorcerer" in counts:
            raise SettingsError("There is no role sorcerer.")
        self.workers = {
            f"{role}-{n}": role for role, number in counts.items() for n in range(number)
        }

    def assign(self, name: str, role: str) -> None:
        self.workers[name] = role


@contextmanager
def running(run_dir: Path) -> Iterator[Book]:
    """A control socket whose owner turns as `baton serve` does."""
    book, stopped = Book(), threading.Event()

    def serve() -> None:
        with ControlSocket(cast(WorkerPool, book), run_dir) as control:
            ready.set()
            while not stopped.wait(0.01):
                control.turn()

    ready = threading.Event()
    thread = threading.Thread(target=serve)
    thread.start()
    assert ready.wait(60)
    yield book
    stopped.set()
    thread.join()


def test_orders_are_carried_out_and_answered(run_dir: Path) -> None:
    assert not supervised(run_dir)
    with running(run_dir) as book:
        assert supervised(run_dir)
        assert order(run_dir, Resize({"decode": 2})) == {"decode-0": "decode", "decode-1": "decode"}
        found = order(run_dir, SetRole("decode-1", "prefill"))
        assert found["decode-1"] == "prefill" == book.workers["decode-1"]


def test_a_refusal_comes_with_its_reason(run_dir: Path) -> None:
    with running(run_dir), pytest.raises(SettingsError, match="no role sorcerer"):
        order(run_dir, Resize({"sorcerer": 1}))


def test_nobody_answers(run_dir: Path) -> None:
    with pytest.raises(Unavailable, match="No supervisor answers"):
        order(run_dir, Resize({"decode": 1}), seconds=0.3)


def test_what_is_no_order_changes_nothing(run_dir: Path) -> None:
    with running(run_dir) as book, Client(CONTROL, socket_path(run_dir, CONTROL), b"x") as client:
        before = dict(book.workers)
        assert order(run_dir, SetRole("decode-1", "decode")) == before
        client.send(Beat("x", 1))
        assert order(run_dir, SetRole("decode-1", "decode")) == before


def test_a_directory_that_others_can_enter_holds_no_socket(run_dir: Path) -> None:
    os.chmod(run_dir, 0o755)
    with pytest.raises(SettingsError, match="must have mode 0700"):
        ControlSocket(cast(WorkerPool, Book()), run_dir)


def test_it_is_of_this_host_only() -> None:
    assert {CONTROL.server, CONTROL.client}.isdisjoint({FLEET.server, FLEET.client, "gateway"})
