"""Recordings to text, through every service: Whisper."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer

from baton_mm_preprocess.audio.speech_split import SpeechSplit
from tests.fakes.whole_system import Whole, whole
from tests.support.tiny_whisper import (
    RATE,
    SECONDS,
    Oracle,
    Samples,
    heard,
    save_whisper,
    sound,
    wav,
)

TRANSCRIBE, TRANSLATE = "/v1/audio/transcriptions", "/v1/audio/translations"
SHORT, LONG = sound(1.7), sound(3.4, 3)
SPLIT = SpeechSplit(SECONDS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models") / "whisper"


@pytest.fixture(scope="module")
def here(folder: Path) -> Iterator[tuple[Whole, Oracle, Tokenizer]]:
    oracle = Oracle(save_whisper(folder))
    words = Tokenizer.from_file(str(folder / "tokenizer.json"))
    worker = {"block_size": 4, "max_num_seqs": 3, "max_num_batched_tokens": 5}
    with whole(folder, worker=worker) as system:
        yield system, oracle, words


def ask(here: Whole, samples: Samples, path: str = TRANSCRIBE, **fields: Any) -> httpx.Response:
    file = ("a.wav", wav(samples), "audio/wav")
    data = {"model": here.model} | fields
    return here.request("POST", path, data=data, files={"file": file})


def chunks(samples: Samples) -> list[tuple[float, Samples]]:
    """Seconds at which each begins, and what is in it."""
    return [(start / RATE, part) for start, part in SPLIT(heard(samples), RATE)]


def text(tokens: list[int], words: Tokenizer) -> str:
    """Without timestamps and special tokens."""
    return re.sub(r"<\|\d\.\d\d\|>", "", words.decode(tokens))


@pytest.mark.row("A01", "F01.31", "F18.18", "F18.19")
def test_transcripts_are_those_of_transformers(here: tuple[Whole, Oracle, Tokenizer]) -> None:
    """Tokens and log-probabilities of every chunk, in steps of five tokens and again from the
    cache, with a language given or detected, either task, and text before."""
    system, oracle, words = here
    previous = [words.get_vocab()["<|startofprev|>"]]
    previous += words.encode(" the relay runner", add_special_tokens=False).ids
    for samples, path, asked in (
        (SHORT, TRANSCRIBE, {}),
        (SHORT, TRANSCRIBE, {"language": "en"}),
        (LONG, TRANSCRIBE, {"language": "de"}),
        (LONG, TRANSLATE, {}),
        (LONG, TRANSCRIBE, {"language": "fr", "prompt": "the relay runner"}),
        (LONG, TRANSCRIBE, {"language": "fr", "prompt": "the relay runner"}),
    ):
        parts = [part for _, part in chunks(samples)]
        assert len(parts) == (1 if samples is SHORT else 3)
        fields = {} if path == TRANSLATE else {"include[]": "logprobs"}
        answer = ask(system, samples, path, **asked, **fields)
        assert answer.status_code == 200, answer.text
        body, language = answer.json(), asked.get("language") or oracle.language(parts[0])
        prompt = oracle.prompt(language, "translate" if path == TRANSLATE else "transcribe")
        prompt = previous + prompt if "prompt" in asked else prompt
        wanted = [oracle.written(part, prompt) for part in parts]
        assert body["text"] == "".join(text(tokens, words) for tokens, _ in wanted).lstrip()
        assert body["usage"] == {"type": "duration", "seconds": 2 if samples is SHORT else 4}
        if path == TRANSCRIBE:
            found = [entry["logprob"] for entry in body["logprobs"]]
            assert found == pytest.approx([p for _, logprobs in wanted for p in logprobs], abs=1e-4)
        if asked == {"language": "en"}:
            # It goes on behind the last timestamp that it finds among random tokens.
            assert oracle.generated(parts[0], "en")[: len(wanted[0][0])] == wanted[0][0]


@pytest.mark.row("A01")
def test_ranks_and_a_lack_of_pages_change_no_transcript(
    here: tuple[Whole, Oracle, Tokenizer], folder: Path
) -> None:
    """Two ranks, and pages for little more than one of three parts."""
    wanted = ask(here[0], LONG, language="de").json()["text"]
    for more in ({"tensor_parallel_size": 2}, {"num_gpu_blocks_override": 20}):
        with whole(folder, worker={"block_size": 4, "max_num_seqs": 3} | more) as other:
            assert ask(other, LONG, language="de").json()["text"] == wanted, more
            counters = other.engine.scheduler.state.counters  # type: ignore[attr-defined]
            assert counters.preemptions > 0 or "tensor_parallel_size" in more


@pytest.mark.row("A01", "F18.18")
def test_segments_streams_and_subtitles(here: tuple[Whole, Oracle, Tokenizer]) -> None:
    """Timestamps by the rules of transformers; a stream is the whole, chunk after chunk."""
    system, oracle, words = here
    first, no_speech = (words.get_vocab()[f"<|{name}|>"] for name in ("0.00", "nospeech"))
    parts = chunks(LONG)
    prompt = oracle.prompt("de", "transcribe", timed=True)
    body = ask(system, LONG, language="de", response_format="verbose_json").json()
    assert (body["task"], body["language"], body["duration"]) == ("transcribe", "german", 3.4)
    assert body["text"] == "".join(segment["text"] for segment in body["segments"]).lstrip()
    assert [segment["id"] for segment in body["segments"]] == [*range(len(body["segments"]))]
    for at, part in parts:
        tokens, logprobs = oracle.written(part, prompt, timed=True)
        mine = [segment for segment in body["segments"] if segment["seek"] == round(100 * at)]
        spoken = [token for segment in mine for token in segment["tokens"] if token < first]
        assert spoken == [token for token in tokens if token < first]
        for segment in mine:
            assert at <= segment["start"] <= segment["end"] <= 3.4
            start = round(at + 0.02 * (segment["tokens"][0] - first), 2)
            assert segment["start"] == min(start, 3.4) or segment["start"] < start
            assert segment["no_speech_prob"] == pytest.approx(
                oracle.silence(part, no_speech), rel=1e-3
            )
        lead = mine[0]["tokens"]
        assert tokens[: len(lead)] == lead
        mean = sum(logprobs[: len(lead)]) / len(lead)
        assert mine[0]["avg_logprob"] == pytest.approx(mean, abs=1e-4)
    srt = ask(system, LONG, language="de", response_format="srt")
    assert srt.headers["content-type"].startswith("text/plain") and " --> 00:00:0" in srt.text
    vtt = ask(system, LONG, language="de", response_format="vtt").text
    assert vtt.startswith("WEBVTT\n\n00:00:00.") and vtt.count("-->") == len(body["segments"])
    whole_text = ask(system, LONG, language="de").json()["text"]
    assert ask(system, LONG, language="de", response_format="text").text == f"{whole_text}\n"
    lines = ask(system, LONG, language="de", stream="true").text.split("\n\n")
    assert lines[-2] == "data: [DONE]"
    events = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    kinds = {event["type"] for event in events[:-1]}
    assert kinds == {"transcript.text.delta"} and len(events) > 10
    assert "".join(event["delta"] for event in events[:-1]) == whole_text == events[-1]["text"]
    usage = events[-1]["usage"]
    assert usage["type"] == "tokens" and usage["input_token_details"]["audio_tokens"] == 300


@pytest.mark.row("A01", "F18.18")
def test_outputs_that_fail_are_written_again(here: tuple[Whole, Oracle, Tokenizer]) -> None:
    """At higher temperatures up to the first that will do, each part by itself; silence has no
    text. Without thresholds nothing changes."""
    asked = {"language": "de", "seed": "3", "response_format": "verbose_json"}

    def parts(**fields: str) -> list[tuple[float, float, list[int]]]:
        body = ask(here[0], LONG, **asked, **fields).json()
        found: dict[int, tuple[float, float, list[int]]] = {}
        for one in body["segments"]:
            _, _, tokens = found.get(one["seek"], (0.0, 0.0, []))
            entry = (one["temperature"], one["avg_logprob"], tokens + one["tokens"])
            found[one["seek"]] = entry
        return list(found.values())

    greedy, hot = parts(), parts(temperature="1")
    assert parts(logprob_threshold="-900", compression_ratio_threshold="900") == greedy
    last = parts(logprob_threshold="0", temperature_increment_on_fallback="0.5")
    assert [part[0] for part in last] == [1.0] * 3 and last == hot
    between = ask(here[0], LONG, **asked, logprob_threshold="-3.0").json()
    assert {one["temperature"] for one in between["segments"]} <= {0, 0.2, 0.4, 0.6, 0.8, 1.0}
    quiet = {"logprob_threshold": "0", "no_speech_threshold": "0"}
    assert ask(here[0], LONG, **asked, **quiet).json()["segments"] == []
    assert ask(here[0], LONG, language="de", **quiet).json()["text"] == ""
    refused = ask(here[0], LONG, stream="true", logprob_threshold="-1")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "stream")
