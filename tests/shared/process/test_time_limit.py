"""Processes are stopped by the processor time that they use, whatever else the machine does."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from baton.process import time_limit as module
from baton.process.time_limit import TimeLimit, cpu_seconds


def child(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code])


@pytest.mark.parametrize("code", ["while True: pass", "import time; time.sleep(600)"])
def test_one_that_computes_or_waits_too_long_is_stopped(code: str) -> None:
    with child(code) as process:
        with TimeLimit(process.pid, 0.05, process.kill) as limit:
            process.wait(60)
        assert limit.exceeded and process.returncode < 0


def test_one_that_is_quick_is_left_alone() -> None:
    with child("input()") as process:
        with TimeLimit(process.pid, 600, process.kill) as limit:
            assert cpu_seconds(process.pid) >= 0
        assert not limit.exceeded and process.poll() is None
        process.kill()
    with pytest.raises(OSError):
        cpu_seconds(process.pid)


def test_load_of_others_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now, used = 100.0, 3.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(module, "cpu_seconds", lambda pid: used)
    cpu, wall = (TimeLimit(os.getpid(), 2.0, lambda: None, wall=wall) for wall in (False, True))
    now, used = 105.0, 3.5
    assert (cpu._remaining(), wall._remaining()) == (1.5, 0.0)
    used = 5.0
    assert cpu._remaining() == 0.0
    now, used = 120.0, 3.5
    assert cpu._remaining() == 0.0, "it waits for something"


def test_without_proc_wall_time_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(pid: int) -> float:
        raise FileNotFoundError

    monkeypatch.setattr(module, "cpu_seconds", absent)
    limit = TimeLimit(os.getpid(), 600.0, lambda: None)
    assert 0 < limit._remaining() <= 600.0
