"""Messages between a supervisor and its child."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

import pytest

from baton_ops.supervisor.processes.child_process import ChildProcess
from tests.support.served_system import until

ANSWER = (
    "import os, time; assert os.read(0, 99) == b'[\"worker\", \"--name\"]\\n'; os.write(0, b'..');"
    "time.sleep(600)"
)
"""A process that waits for its call and then turns."""
CALL = ("worker", "--name")


@pytest.fixture
def process() -> Iterator[ChildProcess]:
    made = ChildProcess([sys.executable, "-S", "-c", ANSWER], os.environ)
    yield made
    made.kill()
    made.close()


def test_it_is_called_and_tells_that_it_turns(process: ChildProcess) -> None:
    assert not process.has_reported()
    assert process.call(CALL)
    until(process.has_reported, "it turns")
    assert not process.has_reported(), "signs count once, however many there were"


def test_it_has_a_group_of_its_own(process: ChildProcess) -> None:
    assert os.getpgid(process.pid) == process.pid


def test_the_dead_cannot_be_called_and_tell_nothing(process: ChildProcess) -> None:
    process.send_signal(signal.SIGKILL)
    until(lambda: not process.call(CALL), "it is dead")
    assert not process.has_reported()
    process.close()
    assert process.returncode == -signal.SIGKILL


def test_a_closed_control_socket_is_noticed() -> None:
    process = ChildProcess([sys.executable, "-S", "-c", "import os; os.read(0, 1)"], os.environ)
    process._control.close()
    assert process.wait(timeout=60) == 0
