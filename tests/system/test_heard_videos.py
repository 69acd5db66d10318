"""Videos whose sound is heard too, through every service: the numbers are those of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.fakes.whole_system import Whole, whole
from tests.support import tiny_omni
from tests.support.served_system import PATIENCE, Served, until
from tests.support.sounds import tones
from tests.support.video_clips import data_url, decoded, encoded, moving

COUNT, FPS = 8, 8
SOUND = tones(3.3)
SAMPLES = np.float32(np.int16(np.round(SOUND * 32767))) / np.float32(32768)
FRAMES = moving(24, 16, 48)
CLIP = encoded(FRAMES, fps=FPS, form="matroska", sound=SOUND)
QUIET = encoded(FRAMES, fps=FPS)
APART = (
    *("--encode", "1", "--prefill", "1", "--decode", "1", "--worker.dtype", "float32"),
    *("--worker.threads", "1", "--worker.max-num-batched-tokens", "12"),
    *("--scheduler.local-prefill-max-tokens", "0"),
)
HEARD = {"mm_processor_kwargs": {"use_audio_in_video": True}}


def body_of(model: str, data: bytes, **fields: Any) -> dict[str, Any]:
    parts = [{"type": "video_url", "video_url": {"url": data_url(data)}}]
    content = [*parts, {"type": "text", "text": "two?"}]
    body = {"model": model, "messages": [{"role": "user", "content": content}]}
    body |= {"temperature": 0, "max_tokens": COUNT, "logprobs": True, "ignore_eos": True}
    return body | {"return_token_ids": True} | fields


def ask(here: Whole, data: bytes, **fields: Any) -> dict[str, Any]:
    answer = here.post("/v1/chat/completions", body_of(here.model, data, **fields))
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def tokens_of(answer: dict[str, Any]) -> list[int]:
    tokens: list[int] = answer["choices"][0]["token_ids"]
    return tokens


@pytest.mark.row("A04", "A05", "F02.04", "F02.05")
@pytest.mark.parametrize("name", tiny_omni.NAMES)
def test_the_sound_of_a_video(tmp_path: Path, name: str) -> None:
    """Steps of 12 tokens and pages of 4: prompt, tokens and numbers of transformers. Again, from
    the prefix cache. Without the setting it is the clip alone, as a clip without a sound is."""
    model = tiny_omni.save(tmp_path, name)
    prompt, tokens, expected = tiny_omni.continued(
        model, tmp_path, name, (decoded(CLIP), float(FPS), SAMPLES), COUNT
    )
    settings = {"block_size": 4, "max_num_batched_tokens": 12, "max_num_seqs": 4}
    with whole(tmp_path, worker=settings) as here:
        answer = ask(here, CLIP, **HEARD)
        assert answer["prompt_token_ids"] == prompt
        assert tokens_of(answer) == tokens
        numbers = [entry["logprob"] for entry in answer["choices"][0]["logprobs"]["content"]]
        assert numbers == pytest.approx(expected, abs=2e-2)
        again = ask(here, CLIP, **HEARD)
        assert tokens_of(again) == tokens
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        alone = ask(here, CLIP)
        assert alone["usage"]["prompt_tokens"] < answer["usage"]["prompt_tokens"]
        assert tokens_of(alone) != tokens
        quiet = ask(here, QUIET, **HEARD)
        assert quiet["prompt_token_ids"] == alone["prompt_token_ids"]
    heard = {"mm_processor_kwargs": '{"use_audio_in_video": true}'}
    drafting = {"speculative_config": '{"num_speculative_tokens": 3, "prompt_lookup_min": 1}'}
    with whole(tmp_path, worker=settings | drafting, media=heard) as here:
        assert tokens_of(ask(here, CLIP)) == tokens


@pytest.mark.slow
@pytest.mark.row("A04", "A05", "F20.02")
@pytest.mark.parametrize("name", tiny_omni.NAMES)
def test_frames_and_sound_of_a_video_come_from_an_encode_worker(
    tmp_path: Path, run_dir: Path, name: str
) -> None:
    """Each is a medium of its own. The prompt runs in steps of 12 tokens on the prefill worker, and
    again from its prefix cache; the answer is handed over."""
    folder = tmp_path / name
    model = tiny_omni.save(folder, name)
    expected = tiny_omni.continued(model, folder, name, (decoded(CLIP), float(FPS), SAMPLES), COUNT)
    served = Served(run_dir, folder, *APART)
    try:
        url = f"{served.ready().url}/v1/chat/completions"
        roles = {"encode", "prefill", "decode"}
        until(lambda: {w["role"] for w in served.fleet()["workers"]} == roles, "all have joined")
        # A short answer may be at its end before the worker that decodes has asked for its pages.
        for count in (COUNT, COUNT, 80):
            asked = body_of(name, CLIP, **HEARD) | {"max_tokens": count}
            answer = httpx.post(url, json=asked, timeout=PATIENCE)
            assert answer.status_code == 200, answer.text
            prompt, tokens, *_ = expected
            assert answer.json()["prompt_token_ids"] == prompt
            assert tokens_of(answer.json())[:COUNT] == tokens
        until(lambda: served.fleet()["handoffs"] > 0, "a sequence is handed over")
        served.reports(media_encoded=2, media_encoded_locally=0, failed_transfers=0)
    finally:
        served.close()
