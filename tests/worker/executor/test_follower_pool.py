"""Followers are started, watched and ended."""

from __future__ import annotations

import os
import queue
import signal
from pathlib import Path
from typing import Any

import pytest

from baton.process.lifecycle import EXIT_FAULT, EXIT_MODEL, EXIT_SETTINGS
from baton_worker.config import Config
from baton_worker.executor import follower_pool
from baton_worker.executor.commands import Begin
from baton_worker.executor.follower_pool import FollowerPool
from tests.support.served_system import until


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(tensor_parallel_size=3, run_dir=tmp_path / "run", device="cpu")


def test_a_follower_that_ends_is_told_with_its_code(config: Config, tmp_path: Path) -> None:
    lost = queue.Queue[tuple[int, int]]()
    made = FollowerPool(config, tmp_path, lost=lambda rank, code: lost.put((rank, code)))
    try:
        assert len(made.processes) == 2 and config.run_dir.stat().st_mode & 0o077 == 0
        os.kill(made.processes[1].pid, signal.SIGKILL)
        assert lost.get(timeout=60) == (2, -signal.SIGKILL)
    finally:
        made.close()
    assert all(process.returncode == -signal.SIGKILL for process in made.processes)
    assert lost.empty(), "an end that was wanted is nothing to tell"


class Measured(Config, prefix="worker"):
    """As of `baton bench engine`."""

    rounds: int = 3


def test_followers_are_told_nothing_but_the_settings_of_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = list[Any]()

    def begin(*given: Any) -> Begin:
        told.append(given)
        return Begin(*given)

    monkeypatch.setattr(follower_pool, "Begin", begin)
    measured = Measured(
        tensor_parallel_size=2, run_dir=tmp_path / "run", device="cpu", max_num_seqs=7
    )
    FollowerPool(measured, tmp_path, lost=lambda rank, code: None).close()
    [(_, _, _, settings, *_)] = told
    assert "rounds" not in settings and Config(**settings).max_num_seqs == 7


def test_a_follower_that_had_ended_is_lost_when_the_pool_is_closed(
    config: Config, tmp_path: Path
) -> None:
    """What waits for it fails at the same moment, and closes the pool."""
    lost = queue.Queue[tuple[int, int]]()
    made = FollowerPool(config, tmp_path, lost=lambda rank, code: lost.put((rank, code)))
    made.processes[0].kill()
    until(lambda: follower_pool._has_ended(made.processes[0]), "its standard input is closed")
    made.close()
    assert lost.get(timeout=60) == (1, -signal.SIGKILL) and lost.empty()


def test_followers_are_not_reached_by_ctrl_c(config: Config, tmp_path: Path) -> None:
    made = FollowerPool(config, tmp_path, lost=lambda rank, code: None)
    try:
        groups = {os.getpgid(process.pid) for process in made.processes}
        assert len(groups) == 2 and os.getpgrp() not in groups
    finally:
        made.close()


@pytest.mark.parametrize(
    ("code", "own"),
    [
        (-9, 128 + 9),
        (1, EXIT_FAULT),
        (0, EXIT_FAULT),
        (EXIT_SETTINGS, EXIT_SETTINGS),
        (EXIT_MODEL, EXIT_MODEL),
    ],
)
def test_a_leader_ends_with_its_follower(
    monkeypatch: pytest.MonkeyPatch, code: int, own: int
) -> None:
    """And says in its own code what the follower has said: whether a restart can help."""
    codes = list[int]()
    monkeypatch.setattr(follower_pool.os, "_exit", codes.append)
    follower_pool._end(1, code)
    assert codes == [own]
