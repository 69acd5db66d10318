"""Audio in conversations, through every service: the numbers are those of transformers."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fakes.gateway_app import error_of
from tests.fakes.whole_system import Whole, whole
from tests.support import tiny_audio
from tests.support.sounds import data_url, encoded, tones

COUNT = 10
LOW, HIGH = tones(0.9, seed=1), tones(0.4, seed=2)
LOW_FILE, HIGH_FILE = (encoded(sound, codec="pcm_f32le") for sound in (LOW, HIGH))
WRITTEN = (
    "<|user|>one <|AUDIO|> and <|AUDIO|>?<|end|><|assistant|>two<|end|>"
    "<|user|><|AUDIO|>again<|end|><|assistant|>"
)


def heard(file: bytes) -> dict[str, Any]:
    data = base64.b64encode(file).decode()
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


def named(file: bytes) -> dict[str, Any]:
    return {"type": "audio_url", "audio_url": {"url": data_url(file)}}


def said(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


TALK: list[dict[str, Any]] = [
    {
        "role": "user",
        "content": [said("one "), heard(LOW_FILE), said(" and "), named(HIGH_FILE), said("?")],
    },
    {"role": "assistant", "content": "two"},
    {"role": "user", "content": [heard(LOW_FILE), said("again")]},
]


def body_of(here: Whole, messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    body = {"model": here.model, "messages": messages, "temperature": 0, "max_tokens": COUNT}
    return body | {"logprobs": True, "ignore_eos": True, "return_token_ids": True} | fields


def ask(here: Whole, messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    answer = here.post("/v1/chat/completions", body_of(here, messages, **fields))
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def tokens_of(answer: dict[str, Any]) -> list[int]:
    tokens: list[int] = answer["choices"][0]["token_ids"]
    return tokens


def encoded_by(here: Whole) -> int:
    assert here.worker.encoder is not None
    return here.worker.encoder.num_encoded


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("qwen2-audio")
    return folder, tiny_audio.save(folder)


@pytest.fixture(scope="module")
def here(qwen: tuple[Path, Any]) -> Iterator[Whole]:
    """Steps of 12 tokens cut the longer sound of 22; pages of 4."""
    settings = {"block_size": 4, "max_num_batched_tokens": 12, "max_num_seqs": 4}
    with whole(qwen[0], worker=settings) as here:
        yield here


@pytest.mark.row("A02", "F01.32")
def test_a_conversation_with_audio(qwen: tuple[Path, Any], here: Whole) -> None:
    """Several sounds in a message, in two turns, cut by the ends of steps, one of them twice: the
    tokens and numbers of transformers. Again, nothing is computed, and no sound encoded."""
    tokens, expected = tiny_audio.continued(qwen[1], qwen[0], WRITTEN, (LOW, HIGH, LOW), COUNT)
    answer = ask(here, TALK)
    assert tokens_of(answer) == tokens
    numbers = [entry["logprob"] for entry in answer["choices"][0]["logprobs"]["content"]]
    assert numbers == pytest.approx(expected, abs=1e-4)
    assert encoded_by(here) == 2, "one of the three is the first one again"
    again = ask(here, TALK)
    assert tokens_of(again) == tokens and encoded_by(here) == 2
    details = again["usage"]["prompt_tokens_details"]
    assert details["cached_tokens"] == again["usage"]["prompt_tokens"] - 1
    ask(here, TALK, cache_salt="x")
    assert encoded_by(here) == 4, "of other tenants and salts nothing is reused"


@pytest.mark.row("A09", "A10", "A11", "F01.39")
def test_sounds_of_several_chunks(tmp_path: Path) -> None:
    """Behind one another, cut by the ends of steps: the tokens and numbers of transformers."""
    long = tones(2.3, seed=7)
    content = [heard(encoded(long, codec="pcm_f32le")), said("a"), heard(HIGH_FILE), said("b")]
    written = "<|user|><|AUDIO|>a<|AUDIO|>b<|end|><|assistant|>"
    settings = {"block_size": 4, "max_num_batched_tokens": 16, "max_num_seqs": 2}
    for stem in ("AudioFlamingo3", "MusicFlamingo", "Voxtral"):
        folder = tmp_path / stem
        model = tiny_audio.save(folder, stem)
        tokens, expected = tiny_audio.continued(model, folder, written, (long, HIGH), COUNT)
        with whole(folder, worker=settings) as here:
            answer = ask(here, [{"role": "user", "content": content}])
            assert tokens_of(answer) == tokens, stem
            numbers = [entry["logprob"] for entry in answer["choices"][0]["logprobs"]["content"]]
            assert numbers == pytest.approx(expected, abs=1e-4), stem


def test_the_responses_api_hears_the_same(here: Whole) -> None:
    content = [{"type": "input_text", "text": "one "}, heard(LOW_FILE)]
    asked = {"model": here.model, "input": [{"role": "user", "content": content}]}
    answer = here.post(
        "/v1/responses", asked | {"temperature": 0, "max_output_tokens": COUNT, "store": False}
    )
    assert answer.status_code == 200, answer.text
    [message] = [item for item in answer.json()["output"] if item["type"] == "message"]
    talk = [{"role": "user", "content": [said("one "), heard(LOW_FILE)]}]
    chat = ask(here, talk, ignore_eos=False)
    assert message["content"][0]["text"] == chat["choices"][0]["message"]["content"]
    assert answer.json()["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]


def test_drafts_grammars_and_preemption_beside_audio_change_nothing(
    qwen: tuple[Path, Any], here: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are pages for two prompts, whose sounds no other shares, and not for both answers."""
    monkeypatch.setattr(
        "baton_worker.engine.speculation.step_timing.measure", lambda step, resolved: {}
    )
    constrained = {"structured_outputs": {"regex": "(ab|cd)(ef)?[a-f]{2,6}"}}
    asked: list[dict[str, Any]] = [
        {"max_tokens": 60},
        {"max_tokens": 60, "temperature": 0.9, "seed": 3},
        constrained,
    ]
    expected = [tokens_of(ask(here, TALK, **fields)) for fields in asked]
    settings = {
        "block_size": 4,
        "max_num_batched_tokens": 12,
        "max_num_seqs": 2,
        "num_gpu_blocks_override": 42,
        "speculative_config": '{"num_speculative_tokens": 4, "prompt_lookup_min": 1}',
    }
    with whole(qwen[0], worker=settings) as drafting:
        bodies = [
            body_of(drafting, TALK, cache_salt=str(i), **fields) for i, fields in enumerate(asked)
        ]
        # The two long answers first, so that both run at the same time in any order.
        for count in (2, 3):
            answers = drafting.together(
                [drafting.client.post("/v1/chat/completions", json=body) for body in bodies[:count]]
            )
            assert [tokens_of(answer.json()) for answer in answers] == expected[:count]
        counters = drafting.engine.scheduler.state.counters  # type: ignore[attr-defined]
        assert counters.num_drafts > 0 and counters.preemptions > 0


@pytest.mark.row("A02")
def test_two_ranks_and_a_host_cache_hear_the_same(qwen: tuple[Path, Any], here: Whole) -> None:
    """Of two ranks each has a part of the decoder, or of its layers; the host keeps KV that had to
    make room."""
    expected = tokens_of(ask(here, TALK))
    small = {"num_gpu_blocks_override": 42, "host_cache_bytes": 1 << 22}
    for more in ({"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}, small):
        with whole(qwen[0], worker={"block_size": 4, "max_num_batched_tokens": 12} | more) as other:
            for salt in ("a", "b", "a"):
                assert tokens_of(ask(other, TALK, cache_salt=salt)) == expected, more


def test_what_is_refused(here: Whole) -> None:
    """Named by its place, in OpenAI's words, before a worker has it."""
    wav = encoded(tones(0.3))
    place = "messages[0].content[1].input_audio"
    for part, status, code, param in (
        (heard(b"hello"), 400, "invalid_audio_format", place),
        (heard(wav[: wav.index(b"data") + 8]), 400, "audio_too_short", place),
        (heard(wav[:22] + b"\xff\xff" + wav[24:]), 400, "invalid_value", place),
        (heard(encoded(tones(1.2))), 400, "audio_too_large", place),
        (named(b""), 400, "empty_audio_file", "messages[0].content[1].audio_url"),
        (
            {"type": "audio_url", "audio_url": {"url": "http://127.0.0.1/a.wav"}},
            400,
            "media_not_allowed",
            "messages[0].content[1].audio_url",
        ),
    ):
        talk = [{"role": "user", "content": [said("a"), part]}]
        answer = here.post("/v1/chat/completions", body_of(here, talk))
        error = error_of(answer)
        assert (answer.status_code, error["code"], error["param"]) == (status, code, param), error
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    answer = here.post(
        "/v1/chat/completions", body_of(here, [{"role": "user", "content": [image]}])
    )
    assert answer.status_code == 400 and "It takes text and audio" in answer.text


def test_words_of_a_client_are_no_audio(here: Whole) -> None:
    """What looks like a placeholder stays text, beside a sound too."""
    text = said("<|AUDIO|>")
    bare = ask(here, [{"role": "user", "content": [text]}])
    both = ask(here, [{"role": "user", "content": [text, heard(HIGH_FILE)]}])
    assert both["usage"]["prompt_tokens"] == bare["usage"]["prompt_tokens"] + 10
    assert not np.array_equal(tokens_of(bare), tokens_of(both))
