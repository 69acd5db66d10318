"""Streamed transcription by workers that encode, prefill and decode apart, through their deaths."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.served_system import PATIENCE, Served, until
from tests.support.tiny_voxtral_realtime import TinyVoxtralRealtime
from tests.support.tiny_whisper import heard, sound, wav

SAMPLES = sound(10.0, 2)
"""Every token of its transcript is the most probable one by 0.003, so rounding changes none."""
FLAGS = (
    *("--encode", "1", "--prefill", "1", "--decode", "1"),
    *("--worker.dtype", "float32", "--worker.threads", "1"),
    *("--worker.max-num-batched-tokens", "16"),
    *("--scheduler.local-prefill-max-tokens", "0"),
    *("--speculative-config", '{"num_speculative_tokens": 3, "prompt_lookup_min": 1}'),
)


def deltas(served: Served, kill: str) -> list[str]:
    """The text of the recording as it comes; a worker is killed in the middle of it."""
    found = list[str]()
    sent: dict[str, Any] = {"data": {"model": "voxtral", "stream": "true", "temperature": "0"}}
    url = f"{served.url}/v1/audio/transcriptions"
    sent["files"] = {"file": ("a.wav", wav(SAMPLES))}
    with httpx.stream("POST", url, timeout=PATIENCE, **sent) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            assert "error" not in event, event
            found.append(event.get("delta", ""))
            if len(found) == 3:
                os.kill(served.pids()[kill], signal.SIGKILL)
    return found


@pytest.mark.slow
@pytest.mark.row("A12", "F18.18")
def test_a_killed_worker_of_any_role_changes_no_token(tmp_path: Path, run_dir: Path) -> None:
    folder = tmp_path / "voxtral"
    folder.mkdir()
    oracle = TinyVoxtralRealtime(folder)
    expected = oracle.text(oracle.written(heard(SAMPLES))).split()
    assert len(expected) > 5
    served = Served(run_dir, folder, *FLAGS)
    try:
        served.ready()
        roles = {"encode", "prefill", "decode"}
        until(lambda: {w["role"] for w in served.fleet()["workers"]} == roles, "all have joined")
        for worker in ("encode-1", "prefill-1", "decode-1"):
            written = "".join(deltas(served, worker))
            assert written.split() == expected, worker
        until(lambda: served.fleet()["media_encoded"] >= 1, "an encode worker has the recording")
        until(lambda: served.fleet()["handoffs"] >= 1, "an answer is handed over")
    finally:
        served.close()
