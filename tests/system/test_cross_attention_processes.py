"""Images that tokens attend to, while a sequence changes its worker: no different answer."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import tiny_mllama
from tests.support.served_system import PATIENCE, Served, until
from tests.support.tiny_dual_encoders import data_url, picture

WIDE, TALL = picture(60, 25, 1), picture(20, 70, 2)
COUNT = 200


def stream(served: Served, **fields: Any) -> Iterator[list[int]]:
    """The tokens of an answer as they come; the first are those of the prompt."""
    parts: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": data_url(image)}} for image in (WIDE, TALL)
    ]
    parts.insert(1, {"type": "text", "text": "and"})
    asked = {"model": "mllama", "messages": [{"role": "user", "content": parts}], "stream": True}
    asked |= {"max_tokens": COUNT, "ignore_eos": True, "temperature": 0, "return_token_ids": True}
    url = f"{served.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=asked | fields, timeout=PATIENCE) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                assert "error" not in event, event
                if event.get("prompt_token_ids"):
                    yield event["prompt_token_ids"]
                for choice in event["choices"]:
                    yield choice.get("token_ids") or []


@pytest.mark.slow
@pytest.mark.row("V14", "F20.02", "F23.02")
def test_hand_over_and_the_death_of_a_worker(tmp_path: Path, run_dir: Path) -> None:
    """Encoded, prefilled and decoded by three workers, of which the last is killed: the tokens of
    transformers. What the first has made is pulled, and its images are encoded nowhere else until
    a worker is lost."""
    folder = tmp_path / "mllama"
    folder.mkdir()
    model = tiny_mllama.save(folder)
    flags = ("--encode", "1", "--prefill", "1", "--decode", "1", "--worker.dtype", "float32")
    flags += ("--scheduler.local-prefill-max-tokens", "0", "--worker.block-size", "4")
    served = Served(run_dir, folder, *flags)
    try:
        served.ready()
        roles = {"encode", "prefill", "decode"}
        until(lambda: {w["role"] for w in served.fleet()["workers"]} == roles, "all have joined")
        prompt, *events = stream(served)
        tokens = [token for part in events for token in part]
        expected, _ = tiny_mllama.continued(model, prompt, [WIDE, TALL], 24)
        assert tokens[:24] == expected and len(tokens) == COUNT
        until(lambda: served.fleet()["handoffs"] > 0, "a sequence is handed over")
        served.reports(media_encoded=2)
        parts = stream(served, cache_salt="other")
        seen = [next(parts) for _ in range(8)][1:]
        os.kill(served.pids()["decode-1"], signal.SIGKILL)
        assert [token for part in [*seen, *parts] for token in part] == tokens
    finally:
        served.close()
