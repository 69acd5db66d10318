"""`--decode-context-parallel-size 2`: two processes with half of the tokens of each text answer as
one with all of them, whoever is killed and whoever takes over."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import tiny_models
from tests.support.served_system import Served, until
from tests.support.system.streams import stream, text_of
from tests.support.system.two_rank_system import Served2

pytestmark = [
    pytest.mark.slow,
    pytest.mark.row("F14.09", "F14.10"),
    pytest.mark.skipif(sys.platform != "linux", reason="reads the process table in /proc"),
]
FLAGS = ("--worker.threads", "2", "--worker.dtype", "float32", "--worker.block-size", "8")
SHARED = (
    "--tensor-parallel-size",
    "2",
    "--decode-context-parallel-size",
    "2",
    "--no-spares",
    *FLAGS,
)
SPLIT = (
    "--prefill-workers",
    "1",
    "--decode-workers",
    "1",
    "--scheduler.local-prefill-max-tokens",
    "0",
    "--run-dir",
    "run",
)
LONG = [(7 * n) % 250 + 10 for n in range(121)]
CASES: list[dict[str, Any]] = [
    {"prompt": LONG},
    {"prompt": LONG, "temperature": 0.9, "seed": 7},
    {"prompt": LONG[:3], "temperature": 0.9, "seed": 8, "repetition_penalty": 1.2},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With one key head, which every rank has."""
    folder = tmp_path_factory.mktemp("models") / "model"
    return tiny_models.save_model(folder, "Qwen3ForCausalLM", num_key_value_heads=1)


@pytest.fixture(scope="module")
def alone(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(tmp_path_factory.mktemp("alone"), model, *FLAGS).ready()
    yield served
    served.close()


@pytest.fixture(scope="module")
def shared(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served2]:
    served = Served2(tmp_path_factory.mktemp("shared"), model, *SHARED)
    served.ready()
    yield served
    served.close()


def asked(served: Served, case: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return stream(served.url, model="model", max_tokens=120, **case)


@pytest.mark.parametrize("case", CASES, ids=["greedy", "sampled", "short"])
def test_two_answer_as_one(alone: Served, shared: Served, case: dict[str, Any]) -> None:
    assert text_of([*asked(shared, case)]) == text_of([*asked(alone, case)])


def test_a_killed_rank_is_a_pause(alone: Served, shared: Served2) -> None:
    events = asked(shared, CASES[1])
    seen = [next(events) for _ in range(5)]
    [follower] = shared.followers()
    os.kill(follower, signal.SIGKILL)
    assert text_of([*seen, *events]) == text_of([*asked(alone, CASES[1])])
    assert "rank 1 of this worker ended with code -9" in shared.log.read_text()


def test_each_passes_its_tokens_on_to_its_like(alone: Served, model: Path, run_dir: Path) -> None:
    served = Served2(run_dir, model, *SHARED, *SPLIT, "--worker.kv-transports", "shm")
    try:
        served.ready()
        until(lambda: len(served.fleet()["workers"]) == 2, "both are there")
        for case in CASES[:2]:
            assert text_of([*asked(served, case)]) == text_of([*asked(alone, case)])
        fleet = served.fleet()
        assert fleet["handoffs"] >= 1 and fleet["failed_transfers"] == 0
    finally:
        served.close()
