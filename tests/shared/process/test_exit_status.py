"""What an exit status says of why a process has died."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from baton.process.exit_status import OomKills, died_inside, passed_on
from baton.process.lifecycle import EXIT_FAULT, EXIT_MODEL, EXIT_SETTINGS


@pytest.mark.parametrize(
    ("code", "inside"),
    [
        (0, False),
        (1, True),
        (EXIT_FAULT, True),
        (EXIT_SETTINGS, False),
        (EXIT_MODEL, False),
        (-signal.SIGSEGV, True),
        (-signal.SIGABRT, True),
        (-signal.SIGKILL, False),
        (-signal.SIGTERM, False),
        (128 + signal.SIGTERM, False),
        (128 + signal.SIGBUS, True),
    ],
)
def test_errors_and_own_signals_are_from_inside(code: int, inside: bool) -> None:
    assert died_inside(code) is inside
    assert died_inside(passed_on(code)) is inside or code == 0
    short = died_inside(code, short_of_memory=True)
    assert short is (inside or code == -signal.SIGKILL)


def test_the_kernel_counts_whom_it_kills_for_memory(tmp_path: Path) -> None:
    assert not OomKills(tmp_path / "nothing").more()
    machine, group = tmp_path / "proc/vmstat", tmp_path / "sys/fs/cgroup/a/b/memory.events"
    (tmp_path / "proc/self").mkdir(parents=True)
    machine.write_text("nr_free_pages 1\noom_kill 4\n")
    kills = OomKills(tmp_path)
    machine.write_text("nr_free_pages 1\noom_kill 5\n")
    assert (kills.more(), kills.more()) == (True, False)
    (tmp_path / "proc/self/cgroup").write_text("1:cpu:/x\n0::/a/b\n")
    group.parent.mkdir(parents=True)
    group.write_text("low 0\noom 9\noom_kill 2\n")
    kills = OomKills(tmp_path)
    machine.write_text("oom_kill 6\n")
    assert not kills.more(), "somebody else's"
    group.write_text("low 0\noom 9\noom_kill 3\n")
    assert kills.more()
