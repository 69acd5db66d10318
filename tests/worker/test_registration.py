"""Registrations with a scheduler over real sockets: epochs, what is said in them, and their end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from baton.net.discovery import StaticDirectory, socket_path
from baton.net.handshake import PeerTable
from baton.net.sockets import Server, wait
from baton.net.topology import FLEET
from baton.process.lifecycle import Lifecycle
from baton.protocol import Beat, Drain, Hello, Message, Revoke
from baton_worker.config import Config
from baton_worker.registration import Registration
from tests.fakes.hash_worker import worker_info


class Fleet:
    """A scheduler and a worker, which take turns."""

    def __init__(self, run_dir: Path) -> None:
        self.server = Server(FLEET, socket_path(run_dir, FLEET))
        self.table = PeerTable(Hello("scheduler", "scheduler", 1, "0"))
        self.life = Lifecycle(drain_seconds=5)
        config = Config(run_dir=run_dir)
        where = StaticDirectory(config)
        self.worker = Registration(config, "w", where, self.life, worker_info(), lambda: (1, False))
        self.heard: list[Message] = []
        self.taken: list[Message] = []

    def until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < end
            self.worker.wait(0.01)
            self.taken += self.worker.messages()
            self.worker.send_due()
            wait((self.server,), 0.01)
            for peer, _, message in self.server.drain():
                self.peer = peer
                self.heard.append(message)
                if isinstance(message, Hello):
                    self.table.register(peer, message, time.monotonic())
                    self.server.send(peer, self.table.me)
                elif isinstance(message, Beat):
                    self.server.send(peer, self.table.beat(message, time.monotonic()))

    def joined(self) -> bool:
        return self.worker._handshake.server is not None

    @property
    def hellos(self) -> list[Hello]:
        return [message for message in self.heard if isinstance(message, Hello)]


@pytest.fixture
def fleet(run_dir: Path) -> Iterator[Fleet]:
    made = Fleet(run_dir)
    with made.worker, made.server:
        yield made


def test_each_registration_is_an_epoch_of_its_own(fleet: Fleet) -> None:
    fleet.until(fleet.joined)
    first = fleet.worker.epoch
    assert fleet.hellos[-1].incarnation == first and not fleet.worker.lost
    fleet.worker.update_info(role="decode")
    fleet.worker.renew()
    assert fleet.worker.epoch != first
    fleet.until(lambda: fleet.hellos[-1].incarnation == fleet.worker.epoch)
    said = fleet.hellos[-1].worker
    assert said is not None and said.role == "decode"


def test_other_messages_are_handed_on_and_a_drain_ends_the_life(fleet: Fleet) -> None:
    fleet.until(fleet.joined)
    fleet.server.send(fleet.peer, Revoke(fleet.worker.epoch, b""))
    fleet.server.send(fleet.peer, Drain())
    fleet.until(lambda: fleet.life.draining)
    fleet.until(lambda: any(isinstance(message, Drain) for message in fleet.heard))
    assert fleet.taken == [Revoke(fleet.worker.epoch, b"")]
    assert not fleet.worker.send(None)
