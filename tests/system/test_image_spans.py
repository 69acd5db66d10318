"""Images whose tokens see one another in both directions, through every service."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes.gateway_app import error_of
from tests.fakes.whole_system import Whole, whole
from tests.support import tiny_gemma3, tiny_paligemma
from tests.support.tiny_dual_encoders import data_url, picture

COUNT = 10
WIDE, SQUARE = picture(60, 25, 1), picture(31, 30, 2)


def seen(image: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(image)}}


def said(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


TALK = [
    {"role": "user", "content": [said("one "), seen(WIDE), said(" and "), seen(SQUARE)]},
    {"role": "assistant", "content": "two"},
    {"role": "user", "content": [seen(SQUARE), said("again")]},
]
_IMAGE = tiny_gemma3.MARKS[0]
WRITTEN = (
    f"<|user|>one {_IMAGE} and {_IMAGE}<|end|><|assistant|>two<|end|>"
    f"<|user|>{_IMAGE}again<|end|><|assistant|>"
)


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


SETTINGS = {"block_size": 4, "max_num_seqs": 3, "max_num_batched_tokens": 14}
PATH = "/v1/chat/completions"


@pytest.mark.row("V11", "F01.05", "F15.04")
def test_gemma3_with_pan_and_scan_in_any_chunks(tmp_path: Path) -> None:
    """The tokens of transformers whatever a step has room for, to the last bit, and from the cache;
    and beside others, of which one is preempted."""
    model = tiny_gemma3.save(tmp_path)
    images = (WIDE, SQUARE, SQUARE)
    tokens, expected = tiny_gemma3.continued(model, tmp_path, WRITTEN, images, COUNT)
    bits = set[tuple[float, ...]]()
    for budget in (9, 14, 512):
        with whole(tmp_path, worker=SETTINGS | {"max_num_batched_tokens": budget}) as here:
            found, numbers, cached = read(here.post(PATH, body_of(here)))
            assert found == tokens and not cached, budget
            assert numbers == pytest.approx(expected, abs=1e-4)
            again, same, cached = read(here.post(PATH, body_of(here)))
            assert again == tokens and cached > 0
            bits |= {tuple(numbers), tuple(same)}
    assert len(bits) == 1, "to the last bit"
    drafts = '{"num_speculative_tokens": 4, "prompt_lookup_min": 1}'
    for more in ({"tensor_parallel_size": 2}, {"speculative_config": drafts}):
        with whole(tmp_path, worker=SETTINGS | more) as here:
            assert read(here.post(PATH, body_of(here)))[0] == tokens, more
    with whole(tmp_path, worker=SETTINGS | {"num_gpu_blocks_override": 96}) as here:
        bodies = [body_of(here, max_tokens=COUNT * n, cache_salt=f"{n}") for n in (5, 6, 4)]
        answers = here.together([here.client.post(PATH, json=body) for body in bodies])
        assert [read(answer)[0][:COUNT] for answer in answers] == [tokens] * 3
        counters = here.engine.scheduler.state.counters  # type: ignore[attr-defined]
        assert counters.preemptions > 0
    with whole(tmp_path, worker=SETTINGS | {"max_num_batched_tokens": 8}) as here:
        error = error_of(answer := here.post(PATH, body_of(here)))
        assert answer.status_code == 400 and "--max-num-batched-tokens 9" in error["message"]


@pytest.mark.row("V11", "F15.04")
def test_a_cached_prefix_may_end_within_an_image(tmp_path: Path) -> None:
    """Other prompts evict the last pages of one, more and more of them."""
    model = tiny_gemma3.save(tmp_path, layer_types=["full_attention"] * 2)
    with whole(tmp_path, worker=SETTINGS | {"num_gpu_blocks_override": 54}) as here:
        first, ends, within = here.post(PATH, body_of(here)), set[int](), set[int]()
        image = model.config.image_token_id
        prompt = first.json()["prompt_token_ids"]
        for length in range(50, 200, 9):
            other = [{"role": "user", "content": ("abcdefghij" * 30)[:length]}]
            read(here.post(PATH, body_of(here, messages=other)))
            answer = here.post(PATH, body_of(here))
            assert read(answer)[:2] == read(first)[:2], ends
            ends.add(end := read(answer)[2])
            within |= {end} if prompt[end - 1] == prompt[end] == image else set()
        assert len(ends) > 10 and len(within) > 1, (ends, within)


@pytest.mark.row("F15.04")
def test_paligemma_reads_an_image_and_a_task_as_one(tmp_path: Path) -> None:
    """Whatever a step has room for, beside others, on two ranks and with drafts; the prefix cache
    has the pages of one task for no other."""
    model = tiny_paligemma.save(tmp_path)

    def asked(here: Whole, task: str, **fields: Any) -> httpx.Response:
        talk = [{"role": "user", "content": [said(task), seen(WIDE)]}]
        return here.post(PATH, body_of(here, messages=talk, **fields))

    expected = {
        task: tiny_paligemma.continued(model, tmp_path, f"<|bos|>{task}\n", WIDE, COUNT)
        for task in ("caption en", "caption english", "ocr")
    }
    drafts = '{"num_speculative_tokens": 4, "prompt_lookup_min": 1}'
    several = ({}, {"tensor_parallel_size": 2}, {"speculative_config": drafts})
    for more in several:
        budget = {"max_num_batched_tokens": 64, "num_gpu_blocks_override": 200}
        with whole(tmp_path, worker=SETTINGS | budget | more) as here:
            for task, (tokens, numbers) in expected.items():
                found, ours, cached = read(asked(here, task))
                assert (found, cached) == (tokens, 0), (more, task)
                assert ours == pytest.approx(numbers, abs=1e-4)
                again, same, cached = read(asked(here, task))
                assert again == tokens and cached > tiny_paligemma.PER_IMAGE
                assert more or same == ours
            twice = asked(here, "ocr", n=2, temperature=1.0, seed=5).json()["choices"]
            assert twice[0]["token_ids"] != twice[1]["token_ids"]
            error = error_of(asked(here, "ocr", prompt_logprobs=1))
            assert error["param"] == "prompt_logprobs"
            two = [{"role": "user", "content": [seen(WIDE), seen(SQUARE), said("ocr")]}]
            error = error_of(here.post(PATH, body_of(here, messages=two)))
            assert error["code"] == "too_many_images"
    with whole(tmp_path, worker=SETTINGS) as here:
        assert "--max-num-batched-tokens" in error_of(asked(here, "ocr"))["message"]
