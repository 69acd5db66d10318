"""Images in conversations while processes die: a pause, and never a different answer."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import tiny_llava
from tests.support.served_system import PATIENCE, Served, until
from tests.support.tiny_dual_encoders import data_url, picture

RED, BLUE = picture(40, 30, 1), picture(30, 50, 2)


def body(model: str, **fields: Any) -> dict[str, Any]:
    parts = [
        {"type": "image_url", "image_url": {"url": data_url(RED)}},
        {"type": "text", "text": "and"},
        {"type": "image_url", "image_url": {"url": data_url(BLUE)}},
    ]
    asked = {"model": model, "messages": [{"role": "user", "content": parts}], "stream": True}
    return asked | {"max_tokens": 300, "ignore_eos": True, "temperature": 1.0, "seed": 5} | fields


def stream(served: Served, **fields: Any) -> Iterator[str]:
    """The pieces of an answer as they come."""
    asked = body("llava", **fields)
    url = f"{served.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=asked, timeout=PATIENCE) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                assert "error" not in event, event
                for choice in event["choices"]:
                    yield choice["delta"].get("content") or ""


@pytest.mark.slow
def test_kill_9_is_a_pause_and_never_a_different_answer(tmp_path: Path, run_dir: Path) -> None:
    """Of the worker, which must see the images again; of the scheduler, to which they are sent
    again; of the media preprocessor, whose next one prepares those of the next request."""
    model = tmp_path / "llava"
    tiny_llava.save(model)
    flags = ("--worker.dtype", "float32", "--worker.max-num-batched-tokens", "24")
    served = Served(run_dir, model, *flags, "--worker.max-num-seqs", "4")
    try:
        served.ready()
        undisturbed = "".join(stream(served))
        for service in ("worker", "scheduler"):
            events = stream(served, cache_salt=service)
            seen = [next(events) for _ in range(5)]
            os.kill(served.pids()[service], signal.SIGKILL)
            assert "".join([*seen, *events]) == undisturbed, service
        old = served.pids()["mm-preprocess"]
        os.kill(old, signal.SIGKILL)
        until(lambda: served.pids().get("mm-preprocess", old) != old, "it is started again")

        def answered() -> bool:
            asked = body("llava", stream=False, max_tokens=1)
            answer = httpx.post(f"{served.url}/v1/chat/completions", json=asked, timeout=PATIENCE)
            return answer.status_code == 200

        until(answered, "images are prepared again")
        assert "".join(stream(served)) == undisturbed
        until(lambda: served.pages_held() == 0, "all pages are free")
    finally:
        served.close()
