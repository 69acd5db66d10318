"""`baton serve MODEL --data-parallel-size 2 --enable-expert-parallel`: two workers, one model."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support import tiny_models
from tests.support.served_system import PATIENCE, Served, until
from tests.support.system.running_system import alive, works
from tests.support.system.two_rank_system import Story, told_by_one_process

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads the process table in /proc"),
]
FLAGS = ("--worker.threads", "1", "--worker.dtype", "float32", "--worker.max-kv-bytes", "16777216")
NAMES = {"worker-1", "worker-2"}
GROUP = ("--data-parallel-size", "2", "--enable-expert-parallel")
OFTEN = '{"window_size": 8, "step_interval": 4, "num_redundant_experts": 2}'
DRAFTS = '{"method": "ngram", "num_speculative_tokens": 3}'


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "hf"
    return tiny_models.save_model(folder, "Qwen3MoeForCausalLM", max_position_embeddings=2048)


@pytest.fixture(scope="module")
def alone(model: Path) -> str:
    """What one worker with all experts answers."""
    return told_by_one_process(model)


@pytest.fixture(scope="module")
def served(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    server = Served(tmp_path_factory.mktemp("two"), model, *GROUP, "--run-dir", "run", *FLAGS)
    try:
        server.ready()
        yield server
    finally:
        server.close()


def workers(served: Served) -> dict[str, int]:
    """Process ids by name."""
    return {name: pid for name, pid in served.pids().items() if name in NAMES}


def all_there(served: Served) -> bool:
    return len(served.fleet()["workers"]) == 2 and works(served.url)


@pytest.mark.row("F13.09")
@pytest.mark.row("F14.07")
@pytest.mark.row("F14.11")
def test_workers_with_half_of_the_experts_each_answer_as_one(served: Served, alone: str) -> None:
    """One stream, while the other worker lends its experts; then one on each."""
    until(lambda: all_there(served), "both are there")
    assert Story(served.url).whole() == alone
    both = [Story(served.url) for _ in range(2)]
    until(
        lambda: (
            sum(bool(w["running"]) for w in served.fleet()["workers"]) == 2
            or all(story.ended for story in both)
        ),
        "each worker has one",
    )
    assert [story.whole() for story in both] == [alone, alone]


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_killed_worker_takes_its_group_along_and_the_streams_go_on(
    served: Served, alone: str, name: str
) -> None:
    until(lambda: all_there(served), "the system works before")
    before = workers(served)
    assert before.keys() == NAMES
    stories = [Story(served.url) for _ in range(2)]
    assert all(story.started.wait(PATIENCE) for story in stories)
    os.kill(before[name], signal.SIGKILL)
    assert all(len(story.text) < len(alone) for story in stories)
    assert [story.whole() for story in stories] == [alone, alone]
    until(lambda: all_there(served), "the group is whole again")
    assert not any(alive(pid) for pid in before.values())
    rank = int(name[-1]) - 1
    assert f"rank {rank} of this group of workers ended" in served.log.read_text()


def test_a_group_ends_in_order(served: Served) -> None:
    """Both drain, and neither takes the end of the other for a fault."""
    until(lambda: all_there(served), "the system works before")
    begin = len(served.log.read_text())
    served.process.send_signal(signal.SIGTERM)
    assert served.process.wait(PATIENCE) == 0
    said = served.log.read_text()[begin:]
    assert "killing it" not in said and "ended: this one ends too" not in said
    assert not list((served.log.parent / "run").glob("group*"))


def rearrangements(served: Served) -> int:
    """How often experts have moved, as the metrics tell it."""
    text = httpx.get(f"{served.url}/metrics").text
    found = re.findall(r"^baton_worker_expert_rearrangements_total\{.*\} (.+)$", text, re.MULTILINE)
    return max((int(float(number)) for number in found), default=0)


@pytest.mark.row("F14.12", "F14.13")
def test_streams_go_on_while_experts_move_and_when_a_rank_is_lost(
    model: Path, alone: str, tmp_path: Path
) -> None:
    """With drafts. Experts move every few steps, so the second rank is killed in the midst of it.
    The group begins anew with the first placement, and moves experts again."""
    eplb = ("--enable-eplb", "--eplb-config", OFTEN, "--speculative-config", DRAFTS)
    served = Served(tmp_path, model, *GROUP, *eplb, *FLAGS)
    try:
        served.ready()
        until(lambda: all_there(served), "both are there")
        stories = [Story(served.url) for _ in range(2)]
        assert all(story.started.wait(PATIENCE) for story in stories)
        until(lambda: "experts rearranged: " in served.log.read_text(), "experts have moved")
        os.kill(workers(served)["worker-2"], signal.SIGKILL)
        assert all(len(story.text) < len(alone) for story in stories)
        assert [story.whole() for story in stories] == [alone, alone]
        until(lambda: rearrangements(served) > 0, "the new group has told that they have moved")
    finally:
        served.close()
