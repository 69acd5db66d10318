"""A recording that is transcribed by real processes, asked by OpenAI's client."""

from __future__ import annotations

import base64
import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from websockets.sync.client import connect

from baton_mm_preprocess.audio.speech_split import SpeechSplit
from tests.fakes.whole_system import whole
from tests.support.served_system import PATIENCE, Served, until
from tests.support.tiny_whisper import RATE, SECONDS, Oracle, heard, save_whisper, sound, wav

LENGTH, PATH = 400, "/v1/audio/transcriptions"
WORDS = {"response_format": "verbose_json", "timestamp_granularities[]": "word"}


@pytest.mark.slow
@pytest.mark.row("A01", "F18.18", "F18.19", "F18.20")
def test_a_worker_dies_within_a_transcript(tmp_path: Path, run_dir: Path) -> None:
    """Whole, streamed, and streamed by a worker that is killed: the same text, that of
    transformers."""
    folder = tmp_path / "whisper"
    oracle = Oracle(save_whisper(folder, length=LENGTH))
    file = ("a.wav", wav(sound(3.4, 3)), "audio/wav")
    flags = ("--worker.dtype", "float32", "--worker.block-size", "4")
    served = Served(run_dir, folder, *flags)
    try:
        served.ready()
        client = openai.OpenAI(
            base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE
        )
        with client:
            create = client.audio.transcriptions.create
            whole = create(
                model="whisper", file=file, language="de", temperature=0, include=["logprobs"]
            )
            assert whole.logprobs is not None and len(whole.logprobs) > LENGTH
            prompt = oracle.prompt("de", "transcribe")
            _, first = next(SpeechSplit(SECONDS)(heard(sound(3.4, 3)), RATE))
            start = oracle.written(first, prompt)[1]
            found = [entry.logprob for entry in whole.logprobs[: len(start)]]
            assert found == pytest.approx(start, abs=1e-3)
            for dies in (False, True):
                with create(
                    model="whisper", file=file, language="de", temperature=0, stream=True
                ) as stream:
                    seen = [next(stream) for _ in range(4)]
                    if dies:
                        os.kill(served.pids()["worker"], signal.SIGKILL)
                    events = [*seen, *stream]
                deltas = [e.delta for e in events if e.type == "transcript.text.delta"]
                assert "".join(deltas) == whole.text and len(deltas) > 100
                last = events[-1]
                assert last.type == "transcript.text.done" and last.text == whole.text
            live_through_a_kill(served, whole.text)
            timed = create(
                model="whisper",
                file=file,
                response_format="verbose_json",
                timestamp_granularities=["segment", "word"],
            )
            assert timed.segments and timed.duration == pytest.approx(3.4)
            assert timed.words and timed.words[-1].end <= timed.duration
            srt = create(model="whisper", file=file, response_format="srt")
            assert isinstance(srt, str) and srt.startswith("1\n00:00:0")
            with pytest.warns(DeprecationWarning):
                translated = client.audio.translations.create(model="whisper", file=file)
            assert translated.text
            with pytest.raises(openai.BadRequestError, match="transcriptions") as refused:
                client.chat.completions.create(
                    model="whisper", messages=[{"role": "user", "content": "hi"}]
                )
            assert refused.value.param == "model"
    finally:
        served.close()


def live_through_a_kill(served: Served, text: str) -> None:
    """Two items of one session: the worker dies within the first."""
    audio = base64.b64encode(wav(sound(3.4, 3))[44:]).decode()
    update = {"type": "session.update", "model": "whisper", "language": "de"}
    url = served.url.replace("http", "ws")
    with connect(f"{url}/v1/realtime", max_queue=None) as socket:
        socket.send(json.dumps(update))
        for dies in (True, False):
            socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": audio}))
            socket.send(json.dumps({"type": "input_audio_buffer.commit", "final": True}))
            deltas, event = list[str](), {"type": ""}
            while event["type"] != "transcription.done":
                event = json.loads(socket.recv(timeout=PATIENCE))
                assert event["type"] != "error", event
                deltas += [event["delta"]] if event["type"] == "transcription.delta" else []
                if dies and len(deltas) == 4:
                    os.kill(served.pids()["worker"], signal.SIGKILL)
                    dies = False
            assert "".join(deltas) == event["text"] == text and len(deltas) > 100


@pytest.mark.slow
@pytest.mark.row("A01")
def test_parts_are_handed_over(tmp_path: Path, run_dir: Path) -> None:
    """Encoded, prefilled and decoded by three workers: the transcript of one, with its words."""
    folder = tmp_path / "whisper"
    save_whisper(folder, length=200)
    apart = ("--encode", "1", "--prefill", "1", "--decode", "1")
    apart += ("--scheduler.local-prefill-max-tokens", "0")
    asked: dict[str, Any] = {
        "data": {"model": "whisper", "language": "de"},
        "files": {"file": ("a.wav", wav(sound(3.4, 3)), "audio/wav")},
    }
    timed: dict[str, Any] = asked | {"data": asked["data"] | WORDS}
    with whole(folder, worker={"block_size": 4}) as here:
        text = here.request("POST", PATH, **asked).json()["text"]
        words = here.request("POST", PATH, **timed).json()["words"]
    assert text and len(words) > 20
    flags = ("--worker.dtype", "float32", "--worker.block-size", "4", *apart)
    served = Served(run_dir, folder, *flags)
    try:
        served.ready()
        until(lambda: len(served.fleet()["workers"]) == 3, "all have joined")
        answer = httpx.post(f"{served.url}{PATH}", **asked, timeout=PATIENCE)
        assert answer.json()["text"] == text
        served.reports(handoffs=3, media_encoded=3)
        answer = httpx.post(f"{served.url}{PATH}", **timed, timeout=PATIENCE)
        assert answer.json()["words"] == words
    finally:
        served.close()
