"""`baton serve MODEL --pipeline-parallel-size 2`: two stages, of which one is killed."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.support.served_system import PATIENCE, until
from tests.support.system.running_system import works
from tests.support.system.two_rank_system import Served2, Story, told_by_one_process

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads the process table in /proc"),
]
FLAGS = ("--worker.threads", "2", "--worker.dtype", "float32", "--no-spares")


@pytest.mark.row("F14.05", "F14.06", "F20.08")
def test_a_stream_over_two_stages_outlives_one_of_them(stories: Path, tmp_path: Path) -> None:
    alone = told_by_one_process(stories)
    server = Served2(tmp_path, stories, "-pp", "2", *FLAGS)
    try:
        server.ready()
        until(lambda: works(server.url), "the system works before")
        worker, (follower,) = server.pids()["worker"], server.followers()
        story = Story(server.url)
        assert story.begun.wait(PATIENCE)
        os.kill(follower, signal.SIGKILL)
        assert len(story.text) < len(alone)
        assert story.whole() == alone
        assert server.pids()["worker"] != worker
        assert "2 ranks" in server.log.read_text()
    finally:
        server.close()
