"""Signs of a loop that turns: now and then, and never in its way."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from baton.process.watchdog import BEAT_SECONDS, Watchdog


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("baton.process.watchdog.time", made)
    return made


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        yield ours, theirs


def test_it_tells_once_per_interval(
    clock: Clock, ends: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = ends
    pulse = Watchdog()
    pulse.attach(ours)
    for _ in range(100):
        pulse.beat()
    assert theirs.recv(100) == b"."
    clock.now += BEAT_SECONDS
    pulse.beat()
    assert theirs.recv(100) == b"."


def test_without_a_supervisor_it_tells_nobody() -> None:
    Watchdog().beat()


def test_it_never_waits_for_one_that_does_not_read_or_is_gone(
    clock: Clock, ends: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = ends
    pulse = Watchdog()
    pulse.attach(ours)
    for _ in range(20_000):
        clock.now += BEAT_SECONDS
        pulse.beat()
    assert 0 < len(theirs.recv(1 << 20)) < 20_000, "the line was full"
    theirs.close()
    clock.now += BEAT_SECONDS
    pulse.beat()


def test_what_takes_long_beats_from_a_thread(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    pulse = Watchdog()
    pulse.attach(ours)
    theirs.settimeout(60)
    with pulse.beating():
        assert theirs.recv(1) == theirs.recv(1) == b"."
