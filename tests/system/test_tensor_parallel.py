"""`baton serve MODEL --tensor-parallel-size 2`: one worker of two processes, killed in every
way."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from baton.process.lifecycle import EXIT_SETTINGS
from tests.support.served_system import PATIENCE, until
from tests.support.system.running_system import Waiting, alive, works
from tests.support.system.two_rank_system import (
    Served2,
    Story,
    told_by_one_process,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads the process table in /proc"),
]
FLAGS = ("--worker.threads", "2", "--worker.dtype", "float32")


@pytest.fixture(scope="module")
def alone(stories: Path) -> str:
    return told_by_one_process(stories)


@pytest.fixture(scope="module")
def served(stories: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served2]:
    folder = tmp_path_factory.mktemp("two")
    server = Served2(folder, stories, "--tensor-parallel-size", "2", "--spares", *FLAGS)
    try:
        server.ready()
        yield server
    finally:
        server.close()


def test_two_ranks_give_the_tokens_of_one(served: Served2, alone: str) -> None:
    assert len(served.followers()) == 1
    assert Story(served.url).whole() == alone


def test_a_follower_killed_in_a_sum_takes_its_worker_along_and_the_stream_goes_on(
    served: Served2, alone: str
) -> None:
    """The other rank waits for its part of the sum. Their spare is of as many ranks, and goes on
    without a load."""
    until(lambda: works(served.url), "the system works before")
    until(lambda: "waiting to take over" in served.log.read_text(), "the spare has loaded")
    worker, (follower,) = served.pids()["worker"], served.followers()
    (spare,) = re.findall(r"worker\[(\d+)\] - loaded; waiting", served.log.read_text())
    story = Story(served.url)
    assert story.started.wait(PATIENCE)
    os.kill(follower, signal.SIGSTOP)
    until(Waiting(worker), "the leader is in a step that the follower takes no part in")
    os.kill(follower, signal.SIGKILL)
    assert len(story.text) < len(alone)
    assert story.whole() == alone
    assert served.pids()["worker"] == int(spare) != worker and not alive(worker)
    log = served.log.read_text()
    assert "rank 1 of this worker ended with code -9" in log and "Traceback" not in log


def test_nothing_is_left_of_a_worker_that_was_killed(served: Served2) -> None:
    until(lambda: works(served.url), "the system works before")
    worker, (follower,) = served.pids()["worker"], served.followers()
    os.kill(worker, signal.SIGKILL)
    until(lambda: not alive(follower), "the follower ends with its leader")
    until(lambda: works(served.url), "the system works again")


def test_prefill_and_decode_of_two_ranks_each_pass_keys_rank_to_rank(
    stories: Path, tmp_path: Path, alone: str
) -> None:
    server = Served2(
        tmp_path, stories, "--tensor-parallel-size", "2", "--prefill-workers", "1",
        "--decode-workers", "1", "--scheduler.local-prefill-max-tokens", "0",
        "--worker.kv-transports", "shm", *FLAGS,
    )  # fmt: skip
    try:
        server.ready()
        until(lambda: len(server.fleet()["workers"]) == 2, "both are there")
        assert Story(server.url).whole() == alone
        server.reports(handoffs=1, failed_transfers=0)
        ranks = "KV of .* comes over shm"
        until(lambda: len(re.findall(ranks, server.log.read_text())) == 2, "each rank says so")
    finally:
        server.close()


def test_a_number_of_ranks_that_cannot_be_is_refused_at_once(stories: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "baton", "serve", str(stories), "--port", "0", *FLAGS]
    done = subprocess.run(
        [*command, "--tensor-parallel-size", "3"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == EXIT_SETTINGS
    assert "--tensor-parallel-size 3: 8 query heads cannot be dealt out evenly" in done.stderr
