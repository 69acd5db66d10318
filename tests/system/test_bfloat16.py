"""The default model as it is served by default: exact in bfloat16 too, whatever happens to it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from baton_worker.kernels import cpu
from tests.support.served_system import PATIENCE, Served

pytestmark = pytest.mark.slow
STORY = "A relay race is a race in which"
CASES = [{"temperature": 0}, {"temperature": 0.9, "seed": 11}]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> Iterator[Served]:
    if cpu.library("linear") is None:
        pytest.skip("no C++ compiler: without the CPU kernels only float32 is exact")
    flags = ("--worker.dtype", "bfloat16", "--scheduler.max-worker-losses", "100")
    served = Served(tmp_path_factory.mktemp("served"), smollm2, *flags).ready()
    yield served
    served.close()


def tokens(served: Served, **fields: Any) -> Iterator[list[int]]:
    """The tokens of one stream, event by event."""
    body = {"model": served.fleet()["model"], "prompt": STORY, "max_tokens": 100, "stream": True}
    body |= {"return_token_ids": True, "ignore_eos": True} | fields
    url = f"{served.url}/v1/completions"
    with httpx.stream("POST", url, json=body, timeout=PATIENCE) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                [choice] = json.loads(line.removeprefix("data: "))["choices"] or [{}]
                yield choice.get("token_ids", [])


def whole(served: Served, **fields: Any) -> list[int]:
    return [token for part in tokens(served, **fields) for token in part]


@pytest.mark.parametrize("fields", CASES, ids=str)
def test_kill_9_of_the_worker_changes_no_token(served: Served, fields: dict[str, Any]) -> None:
    undisturbed = whole(served, **fields)
    assert len(undisturbed) == 100
    events, seen = tokens(served, **fields), list[int]()
    while len(seen) < 30:
        seen += next(events)
    os.kill(served.pids()["worker"], signal.SIGKILL)
    seen += [token for part in events for token in part]
    assert seen == undisturbed


@pytest.mark.parametrize("fields", CASES, ids=str)
def test_the_neighbours_of_a_request_change_no_token(
    served: Served, fields: dict[str, Any]
) -> None:
    alone = whole(served, **fields)
    prompts = [STORY, "Once upon a time", STORY + " four runners", "def main():\n"]
    with ThreadPoolExecutor(len(prompts)) as pool:
        together = list(pool.map(lambda prompt: whole(served, prompt=prompt, **fields), prompts))
    assert together[0] == alone
