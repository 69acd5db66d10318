"""Recordings to text, through every service: Whisper."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer

from baton_gateway.speech.words import split_words
from baton_mm_preprocess.audio.speech_split import SpeechSplit
from baton_worker.structured_output.vocabulary import Vocabulary
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
    """Two ranks, which say no times of words, and pages for little more than one of three
    parts."""
    wanted = ask(here[0], LONG, language="de").json()["text"]
    words = timed_words(here[0], LONG, "word")["words"]
    for more in ({"tensor_parallel_size": 2}, {"num_gpu_blocks_override": 20}):
        with whole(folder, worker={"block_size": 4, "max_num_seqs": 3} | more) as other:
            assert ask(other, LONG, language="de").json()["text"] == wanted, more
            counters = other.engine.scheduler.state.counters  # type: ignore[attr-defined]
            if "tensor_parallel_size" in more:
                asked = {"timestamp_granularities[]": "word", "response_format": "verbose_json"}
                refused = ask(other, LONG, **asked)
                assert refused.status_code == 400 and "several ranks" in refused.text
            else:
                assert counters.preemptions > 0
                assert timed_words(other, LONG, "word")["words"] == words


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


def words_of(
    at: float, end: float, tokens: list[int], times: list[float], pieces: Sequence[bytes], text: int
) -> list[tuple[str, float, float]]:
    """The words of one chunk, timed as transformers does it. Ids of text are below `text`.

    It loses words behind bytes that are no characters, of which a random model writes many: so
    the words are ours, which the test of `split_words` compares.
    """
    found, run = list[tuple[str, float, float]](), list[int]()
    for number, token in enumerate([*tokens, len(pieces)]):
        if token < text:
            run.append(number)
            continue
        for word in split_words([pieces[tokens[n]] for n in run], "de"):
            start, stop = run[word.first], run[word.last]
            limits = (times[start - 1] if start else 0.0, times[stop])
            begin, over = (round(min(at + time, end), 2) for time in limits)
            found += [(word.text.strip(), begin, over)] if word.text.strip() else []
        run = []
    return found


@pytest.mark.row("A01", "F18.18")
def test_words_have_the_times_of_transformers(
    here: tuple[Whole, Oracle, Tokenizer], folder: Path
) -> None:
    """In steps of five tokens, behind text or not; with segments or without."""
    system, oracle, vocabulary = here
    pieces = Vocabulary.read(folder, vocabulary.get_vocab_size()).pieces
    special = vocabulary.get_vocab()["<|endoftext|>"]
    previous = [vocabulary.get_vocab()["<|startofprev|>"]]
    previous += vocabulary.encode(" the relay runner", add_special_tokens=False).ids
    for samples, before in ((SHORT, []), (LONG, []), (LONG, previous)):
        asked = {"prompt": "the relay runner"} if before else {}
        body = timed_words(system, samples, "word", **asked)
        parts, wanted = chunks(samples), list[tuple[str, float, float]]()
        prompt = before + oracle.prompt("de", "transcribe", timed=True)
        ends = [at for at, _ in parts[1:]] + [len(samples) / RATE]
        for (at, part), end in zip(parts, ends, strict=True):
            tokens, _ = oracle.written(part, prompt, timed=True)
            times = oracle.places(part, prompt, tokens)
            wanted += words_of(at, end, tokens, times, pieces, special)
        assert [(one["word"], one["start"], one["end"]) for one in body["words"]] == wanted
        assert len({start for _, start, _ in wanted}) > 2 and "segments" not in body
    both = timed_words(system, LONG, "word", "segment")
    plain = ask(system, LONG, language="de", response_format="verbose_json").json()
    assert both["segments"] == plain["segments"] and "words" not in plain
    assert both["words"] == timed_words(system, LONG, "word")["words"]


def timed_words(system: Whole, samples: Samples, *asked: str, **fields: str) -> Any:
    """A transcript as "verbose_json" with these granularities."""
    given = {"timestamp_granularities[]": list(asked), "response_format": "verbose_json"}
    answer = ask(system, samples, language="de", **given, **fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


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
