"""Structured output beside whatever else a server does at the same time: the same tokens.

Overlap is a plan that is made while the one before it runs (`depth`); a plan may be for several
steps; prefill and decode may be in different processes; what a grammar forces is run ahead or not.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from baton_scheduler.options import SchedulerOptions
from tests.fakes.whole_system import Whole, whole
from tests.support.served_system import Served

pytestmark = pytest.mark.slow
EXACT = ("--worker.dtype", "float32", "--worker.threads", "1", "--worker.block-size", "8")
PROMPT = "Once upon a time there was a little girl who loved to run with her friends. " * 3
SCHEMA = {
    "type": "object",
    "properties": {
        "name_of_the_girl": {"type": "string", "maxLength": 12},
        "friends": {"type": "array", "items": {"enum": ["Tom", "Lily", "a cat"]}, "maxItems": 3},
        "happy_in_the_end": {"type": "boolean"},
    },
    "required": ["name_of_the_girl", "friends", "happy_in_the_end"],
    "additionalProperties": False,
}
NO_OVERLAP = ("--scheduler.plans-in-flight", "1", "--scheduler.max-steps-per-plan", "1")
ONE_PROCESS: dict[str, tuple[bool, SchedulerOptions]] = {
    "overlap": (True, SchedulerOptions(plans_in_flight=4, max_steps_per_plan=1)),
    "overlap, no jumps": (False, SchedulerOptions(plans_in_flight=2, max_steps_per_plan=1)),
    "no overlap": (True, SchedulerOptions(plans_in_flight=1, max_steps_per_plan=1)),
}
"""Whether what a grammar forces is run ahead, and how steps are planned."""
SERVERS = {
    "multi-step": ("--scheduler.plans-in-flight", "2", "--scheduler.max-steps-per-plan", "16"),
    "disaggregated": (
        "--prefill-workers", "1", "--decode-workers", "1",
        "--scheduler.local-prefill-max-tokens", "0",
        "--scheduler.max-steps-per-plan", "8",
    ),
    "disaggregated, no overlap": (
        "--prefill-workers", "1", "--decode-workers", "1",
        "--scheduler.local-prefill-max-tokens", "0", *NO_OVERLAP,
    ),
}  # fmt: skip
ASKED: list[dict[str, Any]] = [
    {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}, "logprobs": 2},
    {"structured_outputs": {"json": SCHEMA}, "temperature": 0.9, "seed": 7, "n": 2},
    {"structured_outputs": {"regex": r"(Lily|Tom) (ran|sat)( and (ran|sat)){2,9}\."}},
    {"structured_outputs": {"choice": ["the end of the story", "the end of it"]}, "min_tokens": 3},
    {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}, "stop": ["friends"]},
    {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}, "max_tokens": 9},
    {},
]


def answers(served: Served | Whole) -> list[Any]:
    found = []
    for fields in ASKED:
        body = served.complete(**{"prompt": PROMPT, "max_tokens": 150} | fields).json()
        choices = [(c["text"], c["finish_reason"], c["logprobs"]) for c in body["choices"]]
        found.append((choices, body["usage"]["completion_tokens"]))
    return found


@pytest.fixture(scope="module")
def expected(stories: Path) -> list[Any]:
    """One plan of one step at a time, without jumps, in one process."""
    one_by_one = SchedulerOptions(plans_in_flight=1, max_steps_per_plan=1)
    worker = {"block_size": 8, "jump_forward": False}
    with whole(stories, worker=worker, scheduler=one_by_one) as here:
        return answers(here)


def test_the_answers_are_valid(expected: list[Any]) -> None:
    [text, reason, logprobs] = expected[0][0][0]
    assert reason == "stop" and json.loads(text).keys() == SCHEMA["properties"].keys()  # type: ignore[attr-defined]
    assert len(logprobs["tokens"]) == expected[0][1]
    assert expected[4][0][0][0] == text.partition("friends")[0]


@pytest.mark.row("F10.07")
@pytest.mark.parametrize("name", ONE_PROCESS)
def test_the_same_answers_in_one_process(stories: Path, expected: list[Any], name: str) -> None:
    jumps, options = ONE_PROCESS[name]
    worker = {"block_size": 8, "jump_forward": jumps}
    with whole(stories, worker=worker, scheduler=options) as here:
        assert answers(here) == expected


@pytest.mark.row("F10.07")
@pytest.mark.parametrize("name", SERVERS)
def test_the_same_answers(tmp_path: Path, stories: Path, expected: list[Any], name: str) -> None:
    served = Served(tmp_path, stories, *EXACT, *SERVERS[name])
    try:
        assert answers(served.ready()) == expected
    finally:
        served.close()
