"""`baton serve MODEL --data-parallel-size 2 --enable-expert-parallel --enable-eplb`."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import httpx
import pytest

from tests.support import tiny_models
from tests.support.served_system import PATIENCE, Served, until
from tests.support.system.running_system import works
from tests.support.system.two_rank_system import Story, told_by_one_process

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads the process table in /proc"),
]
FLAGS = ("--worker.threads", "1", "--worker.dtype", "float32", "--worker.max-kv-bytes", "16777216")
GROUP = ("--data-parallel-size", "2", "--enable-expert-parallel", "--enable-eplb")
OFTEN = '{"window_size": 8, "step_interval": 4, "num_redundant_experts": 2}'


def rearrangements(served: Served) -> int:
    """How often experts have moved, as the metrics tell it."""
    text = httpx.get(f"{served.url}/metrics").text
    found = re.findall(r"^baton_worker_expert_rearrangements_total\{.*\} (.+)$", text, re.MULTILINE)
    return max((int(float(number)) for number in found), default=0)


@pytest.mark.row("F14.12", "F14.13")
def test_streams_go_on_while_experts_move_and_when_a_rank_is_lost(tmp_path: Path) -> None:
    """Experts move every few steps, so the second rank is killed in the midst of it; the group
    begins anew where the checkpoint places its experts."""
    folder = tmp_path / "hf"
    model = tiny_models.save_model(folder, "Qwen3MoeForCausalLM", max_position_embeddings=2048)
    expected = told_by_one_process(model)
    served = Served(tmp_path, model, *GROUP, "--eplb-config", OFTEN, *FLAGS)
    try:
        served.ready()
        until(lambda: len(served.fleet()["workers"]) == 2 and works(served.url), "both are there")
        stories = [Story(served.url) for _ in range(2)]
        assert all(story.begun.wait(PATIENCE) for story in stories)
        until(lambda: rearrangements(served) > 1, "experts have moved")
        assert all(len(story.text) < len(expected) for story in stories)
        os.kill(served.pids()["worker-2"], signal.SIGKILL)
        assert [story.whole() for story in stories] == [expected, expected]
    finally:
        served.close()
    assert served.log.read_text().count("experts rearranged: ") > 1
