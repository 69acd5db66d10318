"""`baton serve MODEL --pipeline-parallel-size 2`: two stages, of which one is killed."""

from __future__ import annotations

import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes.whole_system import whole
from tests.support.served_system import PATIENCE, until
from tests.support.system.running_system import works
from tests.support.system.two_rank_system import ASKED, PROMPT, Served2, Story

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads the process table in /proc"),
]
FLAGS = ("--worker.threads", "2", "--worker.dtype", "float32", "--no-spares")
DRAFTS = '{"method": "ngram", "num_speculative_tokens": 4}'
MIXED: list[dict[str, Any]] = [
    ASKED,
    {"prompt": PROMPT, "max_tokens": 40, "temperature": 0, "logprobs": 3},
    {"prompt": PROMPT[:40], "max_tokens": 40, "temperature": 0.8, "seed": 3, "n": 2},
    {"prompt": "Once", "max_tokens": 40, "temperature": 0, "repetition_penalty": 1.3},
    {
        "prompt": "Tim",
        "max_tokens": 60,
        "temperature": 0,
        "structured_outputs": {"regex": "[a-z]{3,9} [0-9]{2}"},
    },
    {"prompt": PROMPT + " Lily", "max_tokens": 20, "temperature": 0, "echo": True, "logprobs": 1},
]
"""Log-probabilities, choices, penalties, grammars and scored prompts, all at the same time."""


@pytest.mark.row("F14.05", "F14.06", "F20.08")
def test_streams_over_two_stages_are_those_of_one_process_and_outlive_a_stage(
    stories: Path, tmp_path: Path
) -> None:
    with whole(stories) as here:
        expected = [here.complete(**body).json()["choices"] for body in MIXED]
    server = Served2(tmp_path, stories, "-pp", "2", "--worker.speculative-config", DRAFTS, *FLAGS)

    def asked(body: dict[str, Any]) -> Any:
        url = f"{server.url}/v1/completions"
        answer = httpx.post(url, json=body | {"model": "hf"}, timeout=PATIENCE)
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"]

    try:
        server.ready()
        until(lambda: works(server.url), "the system works before")
        with ThreadPoolExecutor(len(MIXED)) as pool:
            assert list(pool.map(asked, MIXED)) == expected
        worker, (follower,) = server.pids()["worker"], server.followers()
        alone = expected[0][0]["text"]
        story = Story(server.url)
        assert story.started.wait(PATIENCE)
        os.kill(follower, signal.SIGKILL)
        assert len(story.text) < len(alone)
        assert story.whole() == alone
        assert server.pids()["worker"] != worker
    finally:
        server.close()
