"""Stopped processes are distinguished from sleeping, dead and continued ones."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from baton_ops.supervisor.process_state import StopDetector, is_stopped
from tests.support.served_system import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture
def pid() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    yield process.pid
    process.kill()
    process.wait()


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    until(lambda: is_stopped(pid), "it stops")


def test_only_a_stopped_process_is_stopped(pid: int) -> None:
    assert not is_stopped(pid) and not is_stopped(os.getpid())
    stop(pid)
    os.kill(pid, signal.SIGCONT)
    until(lambda: not is_stopped(pid), "it goes on")
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, os.WNOHANG)
    until(lambda: not is_stopped(pid), "it is gone")


def test_a_name_with_brackets_is_no_state() -> None:
    own = Path("/proc/self/comm")
    before = own.read_text()
    own.write_text("x) T 1")
    try:
        assert not is_stopped(os.getpid())
    finally:
        own.write_text(before)


def test_patience_begins_anew_when_it_goes_on(pid: int) -> None:
    detector = StopDetector(1.0)
    assert not detector.exceeded(pid, 0.0)
    stop(pid)
    assert not detector.exceeded(pid, 5.0), "only now it is seen"
    assert not detector.exceeded(pid, 5.9)
    assert detector.exceeded(pid, 6.0)
    os.kill(pid, signal.SIGCONT)
    until(lambda: not is_stopped(pid), "it goes on")
    assert not detector.exceeded(pid, 9.0)
    stop(pid)
    assert not detector.exceeded(pid, 9.5)
    assert detector.exceeded(pid, 10.5)


def test_another_process_is_another_matter(pid: int) -> None:
    detector = StopDetector(1.0)
    stop(pid)
    assert not detector.exceeded(pid, 0.0)
    detector.forget()
    assert not detector.exceeded(pid, 5.0)


def test_one_that_may_be_stopped_is_never_given_up(pid: int) -> None:
    detector = StopDetector(math.inf)
    stop(pid)
    assert not detector.exceeded(pid, 0.0) and not detector.exceeded(pid, 1e9)
