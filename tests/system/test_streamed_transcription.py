"""Recordings to text by a model that writes while it hears: Voxtral Realtime."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from baton_mm_preprocess.audio.speech_split import SpeechSplit
from tests.fakes.gateway_app import error_of
from tests.fakes.listening import listening
from tests.fakes.whole_system import Whole, whole
from tests.support.realtime_client import COMMIT, RealtimeClient, opened
from tests.support.tiny_voxtral_realtime import RATE, TinyVoxtralRealtime
from tests.support.tiny_whisper import Samples, heard, sound, wav

PATHS = ("/v1/audio/transcriptions", "/v1/audio/translations")


def ask(here: Whole, samples: Samples, path: str = PATHS[0], **fields: Any) -> httpx.Response:
    data = {"model": here.model} | fields
    return here.request("POST", path, data=data, files={"file": ("a.wav", wav(samples))})


async def said_live(here: Whole, samples: Samples) -> str:
    """The same over /v1/realtime."""
    async with listening(here.app) as at, opened(at) as socket:
        client = RealtimeClient(socket)
        await client.send("session.update", model=here.model)
        await client.append(samples)
        await client.send(COMMIT, final=True)
        events = await client.until("transcription.done")
        return str(events[-1]["text"])


@pytest.mark.row("A12", "F18.18", "F18.20")
def test_transcripts_are_those_of_transformers(tmp_path: Path) -> None:
    """Of a recording in parts: in chunks of 16 tokens and pages of 4, again from the prefix cache,
    with drafts and too few pages for both parts at one time, streamed and live."""
    oracle = TinyVoxtralRealtime(tmp_path)
    samples = sound(2.6, 2)
    parts = [part for _, part in SpeechSplit(2)(heard(samples), RATE)]
    wanted = [oracle.text(oracle.written(part)) for part in parts]
    text = " ".join(part.strip() for part in wanted)
    assert len(parts) == 2 and len(set(text)) > 5
    worker = {"block_size": 4, "max_num_batched_tokens": 16, "max_model_len": 80}
    media = {"max_audio_clip_s": 2}
    drafts = {"speculative_config": '{"num_speculative_tokens": 3, "prompt_lookup_min": 1}'}
    for more in ({}, {"num_gpu_blocks_override": 24} | drafts):
        settings: dict[str, Any] = {"worker": worker | more, "media": media}
        with whole(tmp_path, **settings, realtime_window_seconds=2.0) as here:
            for _ in range(2):
                answer = ask(here, samples)
                assert answer.status_code == 200, answer.text
                assert answer.json()["text"].split() == text.split()
    with whole(tmp_path, worker=worker, media=media, realtime_window_seconds=2.0) as here:
        lines = ask(here, samples, stream="true").text.split("\n\n")
        done = json.loads(lines[-3].removeprefix("data: "))
        assert done["text"].split() == text.split()
        assert done["usage"]["input_token_details"]["audio_tokens"] > 100
        short = ask(here, samples, max_completion_tokens="5")
        assert short.status_code == 200 and len(short.json()["text"]) < len(text)
        assert here.run(lambda: said_live(here, samples)).split() == text.split()


@pytest.mark.row("A12", "F18.20")
def test_a_session_writes_what_is_certain_before_the_end_of_a_part(tmp_path: Path) -> None:
    """Text and tokens are those of the recording, whichever parts of it have come at which time."""
    oracle = TinyVoxtralRealtime(tmp_path)
    samples = sound(2.6, 2)
    text = oracle.text(oracle.written(heard(samples)))
    worker = {"block_size": 4, "max_num_batched_tokens": 16}
    with whole(tmp_path, worker=worker, realtime_step_seconds=0.3) as here:
        lines = ask(here, samples, stream="true").text.split("\n\n")
        usage = json.loads(lines[-3].removeprefix("data: "))["usage"]

        async def said() -> dict[str, Any]:
            async with listening(here.app) as at, opened(at) as socket:
                client = RealtimeClient(socket)
                await client.send("session.update", model=here.model)
                await client.append(samples[:30_000])
                events = await client.until("transcription.delta")
                await client.append(samples[30_000:])
                await client.send(COMMIT, final=True)
                events += await client.until("transcription.done")
                deltas = [e["delta"] for e in events if e["type"] == "transcription.delta"]
                assert "".join(deltas) == events[-1]["text"]
                return events[-1]

        done = here.run(said)
        assert done["text"].split() == text.split()
        counts = ("prompt", "completion"), ("input", "output")
        live, recorded = (
            [found[f"{name}_tokens"] for name in names]
            for found, names in zip((done["usage"], usage), counts, strict=True)
        )
        assert live == recorded


def test_what_is_refused(tmp_path: Path) -> None:
    TinyVoxtralRealtime(tmp_path)
    samples = sound(0.5, 2)
    with whole(tmp_path, worker={"max_model_len": 64}) as here:
        for path, fields, param in (
            (PATHS[0], {"response_format": "verbose_json"}, "response_format"),
            (PATHS[0], {"language": "de"}, "language"),
            (PATHS[0], {"prompt": "Baton"}, "prompt"),
            (PATHS[1], {}, "model"),
        ):
            refused = ask(here, samples, path, **fields)
            assert (refused.status_code, error_of(refused)["param"]) == (400, param), fields
        assert ask(here, samples).status_code == 200
        long = ask(here, sound(3.0, 2))
        assert (long.status_code, error_of(long)["code"]) == (400, "context_length_exceeded")
        chat = {"model": here.model, "messages": [{"role": "user", "content": "hi"}]}
        refused = here.post("/v1/chat/completions", chat)
        assert refused.status_code == 400 and "takes recordings alone" in refused.text
