"""Prefill and decode in different processes give the same text as one process."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import httpx
import pytest

from baton_ops.commands.drain import Drain, drain
from tests.fakes.whole_system import Whole, whole
from tests.support import tiny_models
from tests.support.served_system import PATIENCE, Served, until

pytestmark = pytest.mark.slow
EXACT = (
    "--worker.dtype",
    "float32",
    "--worker.threads",
    "1",
    "--scheduler.local-prefill-max-tokens",
    "0",
)
PROMPT = "Once upon a time there was a little girl who loved to run with her friends. " * 6
CASES: list[dict[str, Any]] = [
    {},
    {"temperature": 0.9, "seed": 7},
    {"temperature": 0.9, "seed": 7, "n": 3},
    {"frequency_penalty": 0.7, "repetition_penalty": 1.2},
    {"stop": ["."]},
    {"logprobs": 3},
    {"structured_outputs": {"regex": "(Lily|Tom) (ran|sat)( and (ran|sat)){2,30}\\."}},
]


def start(folder: Path, model: Path, *flags: str) -> Served:
    return Served(folder, model, *EXACT, *flags).ready()


@pytest.fixture(scope="module")
def alone(stories: Path) -> Iterator[Whole]:
    with whole(stories) as here:
        yield here


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory, stories: Path) -> Iterator[Served]:
    served = start(
        tmp_path_factory.mktemp("split"), stories, "--prefill-workers", "1",
        "--decode-workers", "2", "--worker.block-size", "8", "--run-dir", "run",
    )  # fmt: skip
    until(lambda: len(ready(served)) == 3, "everybody is there")
    yield served
    served.close()


def answer(served: Served | Whole, **fields: Any) -> list[Any]:
    body = served.complete(**{"prompt": PROMPT, "max_tokens": 160} | fields).json()
    return [(c["text"], c["finish_reason"], c["logprobs"]) for c in body["choices"]]


def metric(served: Served, name: str) -> float:
    page = httpx.get(f"{served.url}/metrics", timeout=PATIENCE).text
    return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(name))


@pytest.mark.row("F15.01")
@pytest.mark.parametrize("fields", CASES, ids=str)
def test_a_split_changes_nothing(alone: Whole, split: Served, fields: dict[str, Any]) -> None:
    before = metric(split, "baton_handoffs_total")
    assert answer(split, **fields) == answer(alone, **fields)
    until(lambda: metric(split, "baton_handoffs_total") > before, "the sequence changes workers")
    assert metric(split, "baton_failed_transfers_total") == 0


class Clients:
    """Four clients that ask one request after the other, each of a seed of its own, so that workers
    have sequences whenever something happens to them.

    Context: at its end each client finishes what it asks and asks once more.
    """

    def __init__(self, served: Served, **fields: Any) -> None:
        self.answers: dict[int, list[Any]] = {}
        """By seed."""
        self._served, self._fields = served, fields
        self._ending = threading.Event()
        self._pool = ThreadPoolExecutor(4)

    def __enter__(self) -> Self:
        self._asked = [self._pool.submit(self._ask, range(n, 10**6, 4)) for n in range(4)]
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._pool.shutdown()
        for future in self._asked:
            future.result()

    def _ask(self, seeds: range) -> None:
        for seed in seeds:
            last = self._ending.is_set()
            self.answers[seed] = answer(self._served, seed=seed, **self._fields)
            if last:
                break


def test_a_decode_worker_dies_in_mid_stream(alone: Whole, split: Served) -> None:
    with Clients(split, temperature=0.9) as clients:
        os.kill(split.pids()[running(split)], signal.SIGKILL)
    for seed, text in clients.answers.items():
        assert text == answer(alone, temperature=0.9, seed=seed)


def test_a_rolling_restart_under_load_changes_no_token(alone: Whole, split: Served) -> None:
    until(lambda: len(ready(split)) == 3, "the killed one is back")
    failed = metric(split, "baton_failed_transfers_total")  # That of a worker that was killed.
    with Clients(split, temperature=0.9, max_tokens=300) as clients:
        for name in ("decode-1", "decode-2", "prefill-1"):
            before = split.pids()[name]
            running(split)
            drain(Drain(worker=name, run_dir=split.log.parent / "run"))
            until(lambda n=name, b=before: split.pids().get(n, b) != b, "it starts again")
            until(lambda n=name: n in ready(split), "it is back")
    for seed, text in clients.answers.items():
        assert text == answer(alone, temperature=0.9, seed=seed, max_tokens=300)
    assert metric(split, "baton_failed_transfers_total") == failed


CONNECTORS = {
    "nixl": ("NixlConnector", "DeepseekV3ForCausalLM"),
    "shm": ("shm", "Qwen3MoeForCausalLM"),
    "tcp": ("tcp", "Llama4ForCausalLM"),
}


@pytest.mark.row("F15.02", "F15.03")
@pytest.mark.parametrize("transport", CONNECTORS)
def test_vllm_s_configuration_splits_a_model_and_says_over_what(
    run_dir: Path, tmp_path: Path, transport: str
) -> None:
    """Greedy and sampled text; keys are pulled while the prompt is computed, over one transport."""
    connector, architecture = CONNECTORS[transport]
    if transport == "nixl":
        pytest.importorskip("nixl")
    model = tiny_models.save_model(tmp_path / "model", architecture)
    prompt = [(7 * n) % 250 + 10 for n in range(200)]
    cases: list[dict[str, Any]] = [{}, {"temperature": 0.9, "seed": 7}]
    fields = [{"prompt": prompt, "max_tokens": 48} | case for case in cases]
    with whole(model) as here:
        wanted = [answer(here, **asked) for asked in fields]
    served = start(
        run_dir, model, "--run-dir", "run", "--prefill-workers", "1", "--decode-workers", "1",
        "--scheduler.max-num-batched-tokens", "64",
        "--worker.kv-transfer-config", json.dumps({"kv_connector": connector}),
    )  # fmt: skip
    try:
        until(lambda: len(ready(served)) == 2, "all are there")
        assert [answer(served, **asked) for asked in fields] == wanted
        until(lambda: metric(served, "baton_handoffs_total") >= 1, "it changes workers")
        done = f'baton_transfers_total{{outcome="done",transport="{transport}"}}'
        # What the second prompt needs is there already.
        until(lambda: metric(served, done) >= 1, "its KV is transferred")
        assert metric(served, "baton_failed_transfers_total") == 0
        assert f"comes over {transport}" in served.log.read_text()
    finally:
        served.close()


def ready(served: Served) -> list[str]:
    return [w["name"] for w in served.fleet()["workers"] if w["state"] == "ready"]


def running(served: Served) -> str:
    """The first decode worker that is seen with a sequence."""
    busy: list[str] = []

    def looks() -> bool:
        workers = [w for w in served.fleet()["workers"] if w["role"] == "decode"]
        busy.extend(w["name"] for w in workers if w["running"])
        return bool(busy)

    until(looks, "a decode worker runs some")
    return busy[0]
