"""Speculation on a real server: the answers are those of a server without, to the last number."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from tests.fakes.whole_system import Whole, whole
from tests.support.served_system import Served, until

pytestmark = pytest.mark.slow
EXACT = ("--worker.dtype", "float32", "--worker.threads", "1", "--worker.block-size", "8")
STORY = "Once upon a time there was a little girl who loved to run with her friends. "
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "happy": {"type": "boolean"}},
    "required": ["name", "happy"],
    "additionalProperties": False,
}
NAMES = ("Lily", "Tom", "The dog", "A girl", "Mom", "The cat", "Sue", "Ben")
VERBS = ("went", "said", "ran", "wanted", "was happy")
DRAFTERS: dict[str, dict[str, Any]] = {
    "ngram": {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 1},
    "suffix": {"method": "suffix", "num_speculative_tokens": 6},
    "draft_model": {"quantization": "int4", "num_speculative_tokens": 4},
}
"""A `model` is the target's own folder."""
PROMPTS = [f"{name} {verb} to the" for name in NAMES for verb in VERBS]
KINDS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0.8},
    {"temperature": 0.8, "structured_outputs": {"json": SCHEMA}, "max_tokens": 60},
    {"temperature": 0.8, "logprobs": 2},
    {"temperature": 0.8, "frequency_penalty": 0.6, "presence_penalty": 0.2},
    {"temperature": 0.8, "stop": [" and", "."]},
]
"""Greedy, seeded, a schema, log-probabilities, penalties, stops."""
MANY = [
    {"prompt": prompt, "seed": number, "max_tokens": 12} | kind
    for number, prompt in enumerate(PROMPTS)
    for kind in (KINDS[number % 6], KINDS[(number + 3) % 6])
]
"""Each prompt in each kind is `worker/engine/test_speculation_matrix.py`."""
FEW: list[dict[str, Any]] = [
    {"logprobs": 3},
    {"temperature": 0.8, "seed": 7, "n": 2, "logprobs": 0},
    {"temperature": 0.8, "seed": 8, "frequency_penalty": 0.6, "presence_penalty": 0.2},
    {"temperature": 0.9, "seed": 9, "min_p": 0.05, "repetition_penalty": 1.2},
    {"stop": ["friends", "."], "include_stop_str_in_output": True},
    {"structured_outputs": {"json": SCHEMA}, "temperature": 0.7, "seed": 3, "logprobs": 2},
    {"structured_outputs": {"regex": r"(Lily|Tom) (ran|sat)( and (ran|sat)){2,9}\."}},
    {"bad_words": ["friends"], "logit_bias": {"261": 1.5}, "min_tokens": 20},
    {"speculative": {"num_speculative_tokens": 0}},
    {"max_tokens": 1},
]


def answer(served: Served | Whole, fields: dict[str, Any]) -> Any:
    body = served.complete(**{"prompt": STORY * 3, "max_tokens": 120} | fields).json()
    choices = [(c["text"], c["finish_reason"], c["logprobs"]) for c in body["choices"]]
    return choices, body["usage"]["completion_tokens"]


def answers(served: Served, asked: list[dict[str, Any]]) -> list[Any]:
    """Many at a time, so that their rows share steps."""
    with ThreadPoolExecutor(16) as threads:
        return list(threads.map(lambda fields: answer(served, fields), asked))


def answered_until(served: Served, end: Event) -> list[list[Any]]:
    """Ask again and again: a sequence whose text was seen before is over in a moment."""
    found = [answers(served, FEW)]
    while not end.is_set():
        found.append(answers(served, FEW))
    return found


def kill_while_it_answers(served: Served, delay: float) -> list[list[Any]]:
    """Answers of a time in which the worker is killed, so many seconds after a row has begun."""
    killed = Event()
    with ThreadPoolExecutor(1) as threads:
        again = threads.submit(answered_until, served, killed)
        try:
            until(lambda: served.pages_held() > 0, "a sequence runs")
            time.sleep(delay)
            os.kill(served.pids()["worker"], signal.SIGKILL)
        finally:
            killed.set()
        return again.result()


@pytest.fixture(scope="module")
def expected(stories: Path) -> list[Any]:
    """One after the other, in one process."""
    with whole(stories, worker={"block_size": 8}) as here:
        return [answer(here, fields) for fields in [*FEW, *MANY]]


@pytest.mark.row("F08.01", "F08.02", "F08.03", "F08.12", "F13.10")
@pytest.mark.parametrize("method", DRAFTERS)
def test_the_answers_are_those_without(
    tmp_path: Path, stories: Path, expected: list[Any], method: str
) -> None:
    """Forty prompts. Also where the worker is killed at some token: its sequences go on
    from their logs."""
    fields = DRAFTERS[method]
    if "method" not in fields:
        fields = fields | {"model": str(stories)}
    served = Served(tmp_path, stories, *EXACT, "--speculative-config", json.dumps(fields))
    seed = random.randrange(1000)
    print("the worker is killed after a delay of seed", seed)
    try:
        assert answers(served.ready(), [*FEW, *MANY]) == expected
        found = kill_while_it_answers(served, random.Random(seed).uniform(0, 0.3))
        assert all(one == expected[: len(FEW)] for one in found)
        until(lambda: served.pages_held() == 0, "every page is returned")
    finally:
        served.close()
