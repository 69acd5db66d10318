"""Recordings to text by a language model that hears: Qwen3-ASR."""

from __future__ import annotations

import base64
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
from tests.support.tiny_qwen3_asr import PAD, RATE, TinyQwen3Asr
from tests.support.tiny_whisper import Samples, heard, sound, wav

PATHS = ("/v1/audio/transcriptions", "/v1/audio/translations")
COUNT = 12


async def said_live(here: Whole, samples: Samples) -> str:
    """The same over /v1/realtime."""
    async with listening(here.app) as at, opened(at) as socket:
        client = RealtimeClient(socket)
        await client.send("session.update", model=here.model)
        await client.append(samples)
        await client.send(COMMIT, final=True)
        events = await client.until("transcription.done")
        deltas = [e["delta"] for e in events if e["type"] == "transcription.delta"]
        assert "".join(deltas) == events[-1]["text"]
        return str(events[-1]["text"])


@pytest.mark.row("A06", "F18.18", "F18.20")
def test_transcripts_are_those_of_transformers(tmp_path: Path) -> None:
    """In a language that is given or that the model says, with context, in parts, streamed; and
    chats."""
    oracle = TinyQwen3Asr(tmp_path)
    samples = sound(2.6, 2)
    parts = [part for _, part in SpeechSplit(2)(heard(samples), RATE)]
    assert len(parts) == 2
    worker = {"block_size": 4, "max_num_batched_tokens": 16, "max_model_len": 96}
    media = {"max_audio_clip_s": 2}
    with whole(tmp_path, worker=worker, media=media, realtime_window_seconds=2.0) as here:

        def ask(path: str = PATHS[0], **fields: Any) -> httpx.Response:
            data = {"model": here.model, "max_completion_tokens": COUNT} | fields
            return here.request("POST", path, data=data, files={"file": ("a.wav", wav(samples))})

        for asked, prompt in (
            ({}, f"<|user|>{PAD}<|end|><|assistant|>"),
            (
                {"language": "de", "prompt": "Baton"},
                f"<|system|>Baton<|end|><|user|>{PAD}<|end|><|assistant|>language German<asr_text>",
            ),
        ):
            wanted = [oracle.written(part, prompt, COUNT).strip() for part in parts]
            answer = ask(**asked)
            assert answer.status_code == 200, answer.text
            assert answer.json()["text"].split() == " ".join(wanted).split()
            lines = ask(**asked, stream="true").text.split("\n\n")
            events = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
            assert events[-1]["text"] == answer.json()["text"]
            assert "".join(event["delta"] for event in events[:-1]) == events[-1]["text"]
            details = events[-1]["usage"]["input_token_details"]
            assert details["audio_tokens"] > 20 and details["text_tokens"] > 3
        sent = {"data": {"model": here.model}, "files": {"file": ("a.wav", wav(samples))}}
        live = here.request("POST", PATHS[0], **sent).json()["text"]
        assert here.run(lambda: said_live(here, samples)) == live
        for path, fields, param in (
            (PATHS[0], {"response_format": "verbose_json"}, "response_format"),
            (PATHS[0], {"language": "xx"}, "language"),
            (PATHS[1], {}, "model"),
        ):
            refused = ask(path, **fields)
            assert (refused.status_code, error_of(refused)["param"]) == (400, param)
        file = {"data": base64.b64encode(wav(samples)).decode(), "format": "wav"}
        content = [{"type": "input_audio", "input_audio": file}, {"type": "text", "text": "hi"}]
        chat = {"model": here.model, "messages": [{"role": "user", "content": content}]}
        assert here.post("/v1/chat/completions", chat | {"max_tokens": 2}).status_code == 200
