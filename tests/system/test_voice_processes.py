"""A voice through five processes: the tokens of transformers, and through the death of a worker."""

from __future__ import annotations

import base64
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from baton_mm_preprocess.audio.decode import AudioLimits, decode
from tests.support import tiny_audio
from tests.support.served_system import PATIENCE, Served, until


class Written(NamedTuple):
    """A model, and what transformers makes of it."""

    folder: Path
    tokens: list[int]
    numbers: list[float]


WRITTEN = "<|user|>what is said? <|AUDIO|>answer<|end|><|assistant|>"


def body(file: bytes, **fields: Any) -> dict[str, Any]:
    sound = {"data": base64.b64encode(file).decode(), "format": "flac"}
    parts = [
        {"type": "text", "text": "what is said? "},
        {"type": "input_audio", "input_audio": sound},
        {"type": "text", "text": "answer"},
    ]
    asked = {"model": "flamingo", "messages": [{"role": "user", "content": parts}]}
    return asked | {"temperature": 0, "ignore_eos": True} | fields


def stream(served: Served, asked: dict[str, Any]) -> Iterator[str]:
    """The pieces of an answer as they come."""
    url, asked = f"{served.url}/v1/chat/completions", asked | {"stream": True}
    with httpx.stream("POST", url, json=asked, timeout=PATIENCE) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                assert "error" not in event, event
                for choice in event["choices"]:
                    yield choice["delta"].get("content") or ""


@pytest.fixture(scope="module")
def voice(assets: Path) -> bytes:
    """Eleven seconds of speech, eleven chunks of the model, as FLAC."""
    return (assets / "audio" / "jfk.flac").read_bytes()


@pytest.fixture(scope="module")
def flamingo(voice: bytes, tmp_path_factory: pytest.TempPathFactory) -> Written:
    folder = tmp_path_factory.mktemp("models") / "flamingo"
    model = tiny_audio.save(folder, "AudioFlamingo3")
    samples = decode(voice, 16_000, AudioLimits(30.0))
    return Written(folder, *tiny_audio.continued(model, folder, WRITTEN, [samples], 12))


def check(served: Served, file: bytes, written: Written) -> None:
    """The answer is that of transformers."""
    url = f"{served.url}/v1/chat/completions"
    asked = body(file, max_tokens=12, logprobs=True, return_token_ids=True)
    [choice] = httpx.post(url, json=asked, timeout=PATIENCE).json()["choices"]
    assert choice["token_ids"] == written.tokens
    found = [entry["logprob"] for entry in choice["logprobs"]["content"]]
    assert found == pytest.approx(written.numbers, abs=1e-3)


def _roles(served: Served) -> set[str]:
    return {worker["role"] for worker in served.fleet()["workers"]}


@pytest.mark.slow
def test_encode_workers_hear_for_others(flamingo: Written, voice: bytes, run_dir: Path) -> None:
    flags = ("--encode", "1", "--prefill", "1", "--decode", "1", "--worker.dtype", "float32")
    flags += ("--scheduler.local-prefill-max-tokens", "0")
    served = Served(run_dir, flamingo.folder, *flags)
    try:
        served.ready()
        until(lambda: _roles(served) == {"encode", "prefill", "decode"}, "all have joined")
        check(served, voice, flamingo)
        # Twelve tokens may be at their end before the worker that decodes has asked for the pages.
        assert "".join(stream(served, body(voice, max_tokens=150)))
        until(lambda: served.fleet()["handoffs"] > 0, "a sequence is handed over")
        served.reports(media_encoded=1, media_encoded_locally=0)
    finally:
        served.close()


@pytest.mark.slow
def test_a_voice_is_heard_by_real_processes(flamingo: Written, voice: bytes, run_dir: Path) -> None:
    file, flags = voice, ("--worker.dtype", "float32", "--worker.max-num-batched-tokens", "64")
    served = Served(run_dir, flamingo.folder, *flags)
    try:
        check(served.ready(), file, flamingo)
        long = body(file, max_tokens=150, temperature=1.0, seed=5)
        undisturbed = "".join(stream(served, long))
        events = stream(served, long | {"cache_salt": "a"})
        seen = [next(events) for _ in range(5)]
        os.kill(served.pids()["worker"], signal.SIGKILL)
        assert "".join([*seen, *events]) == undisturbed
        until(lambda: served.pages_held() == 0, "all pages are free")
    finally:
        served.close()
