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

from tests.fakes.whole_system import whole
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
def alone(model: Path) -> list[str]:
    """What one process answers to each of `CASES`."""
    with whole(model, worker={"block_size": 8}) as here:
        answers = [here.complete(max_tokens=120, ignore_eos=True, **case) for case in CASES]
        return [answer.json()["choices"][0]["text"] for answer in answers]


@pytest.fixture(scope="module")
def shared(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served2]:
    served = Served2(tmp_path_factory.mktemp("shared"), model, *SHARED)
    served.ready()
    yield served
    served.close()


def asked(served: Served, case: dict[str, Any]) -> Iterator[dict[str, Any]]:
    return stream(served.url, model="model", max_tokens=120, **case)


def test_two_answer_as_one(alone: list[str], shared: Served) -> None:
    for case, text in zip(CASES, alone, strict=True):
        assert text_of([*asked(shared, case)]) == text, case


def test_a_killed_rank_is_a_pause(alone: list[str], shared: Served2) -> None:
    events = asked(shared, CASES[1])
    seen = [next(events) for _ in range(5)]
    [follower] = shared.followers()
    os.kill(follower, signal.SIGKILL)
    assert text_of([*seen, *events]) == alone[1]
    said = "rank 1 of this worker ended with code -9"
    until(lambda: said in shared.log.read_text(), "its leader says so")


def test_each_passes_its_tokens_on_to_its_like(
    alone: list[str], model: Path, run_dir: Path
) -> None:
    served = Served2(run_dir, model, *SHARED, *SPLIT, "--worker.kv-transports", "shm")
    try:
        served.ready()
        until(lambda: len(served.fleet()["workers"]) == 2, "both are there")
        for case, text in zip(CASES[:2], alone[:2], strict=True):
            assert text_of([*asked(served, case)]) == text, case
        until(lambda: served.fleet()["handoffs"] >= 1, "a sequence is handed over")
        assert served.fleet()["failed_transfers"] == 0
    finally:
        served.close()
