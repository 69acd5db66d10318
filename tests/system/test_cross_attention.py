"""Images that tokens attend to, through every service: Llama 3.2 Vision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes.whole_system import Whole, whole
from tests.support import tiny_mllama
from tests.support.tiny_dual_encoders import data_url, picture

COUNT = 10
WIDE, TALL, SMALL = picture(60, 25, 1), picture(20, 70, 2), picture(9, 9, 3)
PATH = "/v1/chat/completions"
SETTINGS = {"block_size": 4, "max_num_seqs": 3, "max_num_batched_tokens": 7}
GUIDED = {"structured_outputs": {"regex": "(ab|cd)(ef)?[a-f]{9,12}"}}
DRAFTS = '{"num_speculative_tokens": 4, "prompt_lookup_min": 1}'


def parts(*given: Any) -> list[dict[str, Any]]:
    return [
        {"type": "text", "text": one}
        if isinstance(one, str)
        else {"type": "image_url", "image_url": {"url": data_url(one)}}
        for one in given
    ]


TALK = [
    {"role": "user", "content": parts("one ", WIDE, " and ", TALL, SMALL, "?")},
    {"role": "assistant", "content": "two"},
    {"role": "user", "content": parts(TALL, "again")},
]
IMAGES = [WIDE, TALL, SMALL, TALL]
TEXT = [{"role": "user", "content": "no picture"}]


def body_of(here: Whole, **fields: Any) -> dict[str, Any]:
    body = {"model": here.model, "messages": TALK, "temperature": 0, "max_tokens": COUNT}
    return body | {"logprobs": True, "ignore_eos": True, "return_token_ids": True} | fields


def read(answer: httpx.Response) -> tuple[list[int], list[float], int]:
    """Tokens, log-probabilities, cached tokens of the prompt."""
    assert answer.status_code == 200, answer.text
    found = answer.json()
    choice, usage = found["choices"][0], found["usage"]["prompt_tokens_details"]
    numbers = [entry["logprob"] for entry in choice["logprobs"]["content"]]
    return choice["token_ids"], numbers, usage["cached_tokens"]


@pytest.mark.row("V14", "F01.05", "F15.04", "F23.02")
def test_llama_vision_in_any_chunks(tmp_path: Path) -> None:
    """Several images, two of them without text between: the tokens of transformers whatever a step
    has room for, to the last bit, from the cache, beside drafts, and beside others of which one is
    preempted and its KV kept by the host. A grammar allows the same tokens there. Texts without
    images are those of the language model."""
    model = tiny_mllama.save(tmp_path)
    token, bits = model.config.image_token_index, set[tuple[float, ...]]()
    for budget in (5, 512):
        with whole(tmp_path, worker=SETTINGS | {"max_num_batched_tokens": budget}) as here:
            answer = here.post(PATH, body_of(here))
            prompt = answer.json()["prompt_token_ids"]
            tokens, expected = tiny_mllama.continued(model, prompt, IMAGES, COUNT)
            assert prompt.count(token) == 4 and prompt[0] != token
            found, numbers, cached = read(answer)
            assert found == tokens and not cached and numbers == pytest.approx(expected, abs=1e-4)
            again, same, cached = read(here.post(PATH, body_of(here)))
            assert again == tokens and cached == len(prompt) - 1
            bits |= {tuple(numbers), tuple(same)}
            assert here.worker.encoder is not None and here.worker.encoder.num_encoded == 3
            plain = here.post(PATH, body_of(here, messages=TEXT))
            texts, _ = tiny_mllama.continued(model, plain.json()["prompt_token_ids"], [], COUNT)
            assert read(plain)[0] == texts
            guided = read(here.post(PATH, body_of(here, **GUIDED)))[0]
    assert len(bits) == 1, "to the last bit"
    settings = SETTINGS | {"num_gpu_blocks_override": 44, "speculative_config": DRAFTS}
    settings |= {"encoder_cache_bytes": 0, "host_cache_bytes": 1 << 22}
    with whole(tmp_path, worker=settings) as here:
        bodies = [body_of(here, max_tokens=COUNT * n, cache_salt=f"{n}") for n in (6, 7, 5)]
        others = [body_of(here, messages=TEXT), body_of(here, **GUIDED)]
        posts = [here.client.post(PATH, json=body) for body in [*bodies, *others]]
        answers = here.together(posts)
        found_all = [read(answer)[0][:COUNT] for answer in answers[:-1]]
        assert found_all == [tokens] * 3 + [texts] and read(answers[-1])[0] == guided != tokens
        counters = here.engine.scheduler.state.counters  # type: ignore[attr-defined]
        assert counters.preemptions > 0


@pytest.mark.row("V14", "F23.02")
def test_images_are_never_those_of_others(tmp_path: Path) -> None:
    """One token stands for each of them; the cached prefix before it is shared, and no page of it
    or behind it."""
    model = tiny_mllama.save(tmp_path)
    with whole(tmp_path, worker=SETTINGS) as here:
        answers = []
        for image in (WIDE, TALL, WIDE):
            talk = [{"role": "user", "content": parts("what is seen here? ", image)}]
            answers.append(here.post(PATH, body_of(here, messages=talk)))
            prompt = answers[-1].json()["prompt_token_ids"]
            tokens, _ = tiny_mllama.continued(model, prompt, [image], COUNT)
            assert read(answers[-1])[0] == tokens
        first = prompt.index(model.config.image_token_index)
        assert 0 < read(answers[1])[2] <= first < read(answers[2])[2]
        assert read(answers[0])[:2] == read(answers[2])[:2] != read(answers[1])[:2]
        given = body_of(here, messages=talk)
    with whole(tmp_path, worker=SETTINGS | {"tensor_parallel_size": 2}) as here:
        assert read(here.post(PATH, given | {"model": here.model}))[0] == read(answers[2])[0]
