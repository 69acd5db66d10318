"""Spares of toy processes: who calls them, and when they are started and end."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from baton_ops.supervisor.spare import FIRST_DELAY, Spare
from baton_ops.supervisor.supervisor import TICK_SECONDS, Supervisor
from tests.fakes.supervisor_loop import tick_until
from tests.support.system.running_system import alive

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
SLEEP = "import time; time.sleep(600)"


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def pid(supervisor: Supervisor, service: str) -> int:
    process = supervisor.children[service].process
    return process.pid if process is not None else 0


WAITING = "import sys, time; sys.stdin.buffer.readline(); time.sleep(600)"
"""A spare that begins when it is called."""


@pytest.fixture
def spared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Supervisor]]:
    """A supervisor whose one child has a spare that runs some code, as soon as may be."""
    monkeypatch.setattr("baton_ops.supervisor.child.SPARE_SECONDS", 0.0)
    monkeypatch.setattr("baton_ops.supervisor.child.FIRST_SPARE_SECONDS", 0.0)
    made: list[Supervisor] = []

    def build(code: str) -> Supervisor:
        commands, spares = {"gateway": python(SLEEP)}, {"gateway": python(code)}
        made.append(Supervisor(commands, os.environ, 5.0, spares))
        made[-1].start()
        return made[-1]

    yield build
    for supervisor in made:
        supervisor.kill()


def children() -> set[int]:
    """Processes of this one that have not ended."""
    mine = Path("/proc/self/task").glob("*/children")
    found = {int(number) for path in mine for number in path.read_text().split()}
    return {number for number in found if alive(number)}


def test_a_spare_takes_over_and_gets_a_successor(spared: Callable[[str], Supervisor]) -> None:
    others = children()
    supervisor = spared(WAITING)
    first = pid(supervisor, "gateway")
    tick_until(supervisor, lambda: len(children() - others) == 2)
    (spare,) = children() - others - {first}
    os.kill(first, signal.SIGKILL)
    tick_until(supervisor, lambda: pid(supervisor, "gateway") == spare)
    assert supervisor.restarts() == 1
    tick_until(supervisor, lambda: len(children() - others) == 2)
    supervisor.kill()
    assert children() <= others


def test_a_spare_that_cannot_load_is_no_loss(spared: Callable[[str], Supervisor]) -> None:
    supervisor = spared("import sys; sys.exit(2)")
    first = pid(supervisor, "gateway")
    for _ in range(10):
        supervisor.tick()
        time.sleep(TICK_SECONDS)
    assert supervisor.fatal_exit is None
    os.kill(first, signal.SIGKILL)
    tick_until(supervisor, lambda: pid(supervisor, "gateway") not in {0, first})
    assert alive(pid(supervisor, "gateway"))


def test_a_spare_does_not_outlive_a_drain(spared: Callable[[str], Supervisor]) -> None:
    others = children()
    supervisor = spared(WAITING)
    tick_until(supervisor, lambda: len(children() - others) == 2)
    supervisor.drain()
    assert children() <= others


def test_one_that_cannot_load_is_tried_again_ever_more_rarely() -> None:
    others, spare, now, starts = children(), Spare(python(""), os.environ), 0.0, list[float]()
    while now < 8 * FIRST_DELAY:
        spare.prepare(now, replaced=0)
        if process := spare._process:
            starts.append(now)
            process.wait()
            spare.prepare(now, replaced=0)
            assert spare._process is None
        now += FIRST_DELAY / 5
    assert starts == [0.0, FIRST_DELAY, 3 * FIRST_DELAY, 7 * FIRST_DELAY]
    assert children() <= others
