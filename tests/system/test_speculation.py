"""Speculation on a real server: the answers are those of a server without, to the last number."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest

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
DRAFTERS = {
    "ngram": '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 1}',
    "suffix": '{"method": "suffix", "num_speculative_tokens": 6}',
}
ASKED: list[dict[str, Any]] = [
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


def answer(served: Served, fields: dict[str, Any]) -> Any:
    body = served.complete(**{"prompt": STORY * 3, "max_tokens": 120} | fields).json()
    choices = [(c["text"], c["finish_reason"], c["logprobs"]) for c in body["choices"]]
    return choices, body["usage"]["completion_tokens"]


def answers(served: Served) -> list[Any]:
    """All at the same time, so that their rows share steps."""
    with ThreadPoolExecutor(len(ASKED)) as threads:
        return list(threads.map(lambda fields: answer(served, fields), ASKED))


def answered_until(served: Served, end: Event) -> list[list[Any]]:
    """Ask again and again: a sequence whose text was seen before is over in a moment."""
    found = [answers(served)]
    while not end.is_set():
        found.append(answers(served))
    return found


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, stories: Path) -> Iterator[list[Any]]:
    served = Served(tmp_path_factory.mktemp("plain"), stories, *EXACT)
    try:
        yield answers(served.ready())
    finally:
        served.close()


@pytest.mark.row("F08.12", "F13.10")
@pytest.mark.parametrize("method", DRAFTERS)
def test_the_answers_are_those_without(
    tmp_path: Path, stories: Path, expected: list[Any], method: str
) -> None:
    """Also where the worker is killed in the middle: its sequences go on from their logs."""
    drafting = ("--speculative-config", DRAFTERS[method])
    served = Served(tmp_path, stories, *EXACT, *drafting)
    try:
        assert answers(served.ready()) == expected
        killed = Event()
        with ThreadPoolExecutor(1) as threads:
            again = threads.submit(answered_until, served, killed)
            until(lambda: served.pages_held() > 0, "a sequence runs")
            os.kill(served.pids()["worker"], signal.SIGKILL)
            killed.set()
            assert all(one == expected for one in again.result())
        until(lambda: served.pages_held() == 0, "every page is returned")
    finally:
        served.close()
