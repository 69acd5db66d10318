"""`baton replay FILE` on the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from baton.errors import SettingsError
from baton.protocol import Sampling
from baton_ops.commands import replay as module
from baton_scheduler.events import Draining, Tick
from baton_scheduler.options import SchedulerOptions
from baton_scheduler.replay.recorder import Recorder
from baton_scheduler.state import State
from tests.fakes.hash_worker import worker_info
from tests.support.scheduler_world import Recorded


def record(path: Path, *, faithful: bool) -> None:
    """Three events; an unfaithful recording does not say what the state had become."""
    state, recorder = State(SchedulerOptions()), Recorder(path, SchedulerOptions(), 10**6)
    for event in (Tick(1.0), Draining(), Tick(2.0)):
        decisions = state.apply(event)
        seen = state if faithful else State(SchedulerOptions())
        recorder.note(event, decisions, seen)
    recorder.close()


def baton(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "baton", "replay", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_equal_decisions_exit_with_0(tmp_path: Path) -> None:
    record(tmp_path / "run", faithful=True)
    done = baton(str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert "every decision is the same" in done.stdout and "3" in done.stdout


def test_a_difference_exits_with_1_and_names_the_event(tmp_path: Path) -> None:
    record(tmp_path / "run", faithful=False)
    done = baton(str(tmp_path / "run"))
    assert done.returncode == 1, done.stderr
    assert "differs at event 1" in done.stdout


def test_no_recording_exits_with_2_and_one_sentence(tmp_path: Path) -> None:
    done = baton(str(tmp_path / "none"))
    assert done.returncode == 2
    assert "Cannot read" in done.stderr and "Traceback" not in done.stderr


def test_without_the_scheduler_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"baton-serve\[scheduler\]"):
        module.report(tmp_path / "run")


def flood(path: Path) -> None:
    """One tenant sends much at once, another a little later: first come, first served."""
    world = Recorded(path, SchedulerOptions(32, scheduling_policy="fcfs"))
    world.join("w", worker_info(max_num_seqs=4)).engine.duration_us = 10_000
    for number in range(30):
        world.submit([number] * 8, Sampling(12, seed=number), tenant="flood")
    for number in range(3):
        world.round()
        world.submit([number] * 8, Sampling(4, seed=number), tenant="calm")
    world.finish()
    world.recorder.close()


def test_another_order_is_compared_per_tenant(tmp_path: Path) -> None:
    flood(tmp_path / "run")
    done = baton(str(tmp_path / "run"), "--scheduling-policy", "fair")
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.endswith("% │")]
    rows = {line.split()[1]: line.split() for line in lines if "prompt" not in line}
    assert set(rows) == {"calm", "flood"}
    assert rows["calm"][9].startswith("-") and rows["calm"][3] == "3"
    assert "95th percentile" in done.stdout and "fair, cost" in done.stdout


def test_another_placement_is_compared_too(tmp_path: Path) -> None:
    flood(tmp_path / "run")
    done = baton(str(tmp_path / "run"), "--placement-policy", "round-robin")
    assert done.returncode == 0, done.stderr
    assert "fcfs, round-robin" in done.stdout and "tokens moved" in done.stdout
    done = baton(str(tmp_path / "run"), "--placement-policy", "in-turn")
    assert done.returncode == 2 and "Known: cost, round-robin" in done.stderr


def test_an_unknown_order_exits_with_2_and_the_known_ones(tmp_path: Path) -> None:
    record(tmp_path / "run", faithful=True)
    done = baton(str(tmp_path / "run"), "--scheduling-policy", "fare")
    assert done.returncode == 2
    assert "Did you mean 'fair'" in done.stderr and "Traceback" not in done.stderr
