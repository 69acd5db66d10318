"""Admission checks before a request reaches a worker."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any

import pytest

from baton.errors import InvalidRequest
from baton.protocol import Blob, Media, Sampling
from baton.protocol.packed_tokens import PackedTokens
from baton.protocol.token_columns import derive_seed
from baton_gateway.catalogue import ModelInfo
from baton_gateway.generation.admission import (
    check_adapter,
    check_ids,
    check_pixels,
    check_text,
    clamp_max_tokens,
    sampling_of,
    too_long,
)
from baton_gateway.generation.request import (
    ChatPrompt,
    EncodedPrompt,
    GenerationRequest,
    PairPrompt,
    Prompt,
    TextPrompt,
)
from tests.support.gateway.generation_requests import request_of

FACTS = ModelInfo("m", max_model_len=10, vocab_size=100, eos_ids=(1, 2), media_ids=frozenset({50}))


def _generation(**fields: Any) -> GenerationRequest:
    return request_of(**({"prompts": ((3,),), "seed": 5} | fields))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompts": ((3, 100),)}, "prompt[1]"),
        ({"prompts": ((3,), (3, -1))}, "prompt[1][1]"),
        ({"prompts": ((3, 4, 50),)}, "prompt[2]"),
        ({"sampling": Sampling(0, logit_bias={100: 1.0})}, "logit_bias"),
        ({"sampling": Sampling(0, stop_ids=(-1,))}, "stop_token_ids"),
    ],
)
def test_ids_outside_the_model(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_ids(_generation(**fields), FACTS)
    assert (caught.value.code, caught.value.param) == ("invalid_value", param)


def test_a_resumed_stream_keeps_its_adapter() -> None:
    adapted = replace(FACTS, name="one", adapter=b"new")
    check_adapter(_generation(), adapted)
    check_adapter(_generation(resumed=True, adapter=b"new"), adapted)
    check_adapter(_generation(resumed=True), FACTS)
    with pytest.raises(InvalidRequest, match="`one` has been loaded again") as caught:
        check_adapter(_generation(resumed=True, adapter=b"old"), adapted)
    assert caught.value.code == "adapter_changed"


def test_ids_of_the_model() -> None:
    sampling = Sampling(0, logit_bias={0: 1.0, 99: -1.0}, stop_ids=(99,))
    check_ids(_generation(prompts=((0, 99),), sampling=sampling), FACTS)


def test_endless_list_is_refused_before_its_ids_are_read() -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_ids(_generation(prompts=(tuple([-1]) * 11,)), FACTS)
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("length", "max_tokens", "room"),
    [(1, None, 9), (9, None, 1), (4, 6, 6), (9, 1, 1), (9, 0, 1), (1, 0, 1)],
)
def test_room(length: int, max_tokens: int | None, room: int) -> None:
    prompt = array("i", [3] * length)
    assert clamp_max_tokens(_generation(max_tokens=max_tokens), prompt, FACTS) == room


@pytest.mark.parametrize(("length", "max_tokens"), [(10, None), (10, 0), (4, 7), (1, 2**31 - 1)])
def test_no_room(length: int, max_tokens: int | None) -> None:
    with pytest.raises(InvalidRequest) as caught:
        clamp_max_tokens(_generation(max_tokens=max_tokens), array("i", [3] * length), FACTS)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")


def test_empty_prompt() -> None:
    with pytest.raises(InvalidRequest) as caught:
        clamp_max_tokens(_generation(), array("i"), FACTS)
    assert caught.value.code == "empty_string"


def test_words_of_the_context_error() -> None:
    assert "your prompt resulted in 10 tokens" in too_long(_generation(), 10, FACTS).message
    assert "at least 11 tokens" in too_long(_generation(max_tokens=1), 11, FACTS).message
    asked = too_long(_generation(max_tokens=7), 4, FACTS).message
    assert "requested 11 tokens (4 in the prompt, 7 in the completion)" in asked


@pytest.mark.parametrize(("ignore", "stops"), [(False, (1, 2, 7)), (True, (2, 7))])
def test_sampling_of_a_choice(ignore: bool, stops: tuple[int, ...]) -> None:
    generation = _generation(
        sampling=Sampling(0, temperature=0.5, stop_ids=(2, 7)), ignore_eos=ignore
    )
    told = sampling_of(generation, 3, 6, FACTS)
    assert (told.max_tokens, told.seed, told.temperature) == (6, derive_seed(5, 3), 0.5)
    assert told.stop_ids == stops


@pytest.mark.parametrize(
    ("prompt", "fits"),
    [
        (TextPrompt("x" * 262_144), True),
        (TextPrompt("x" * 262_145), False),
        (PairPrompt("x", "x" * 262_145), False),
        (PairPrompt([{"text": "x" * 262_144}, {"type": "image"}], "x"), True),
        (ChatPrompt(b"x" * 6 * 262_144), True),
        (ChatPrompt(b"x" * 6 * 262_144 + b"x"), False),
        ((1,) * 300_000, True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_text_of_megabytes_is_refused_before_it_is_encoded(prompt: Prompt, fits: bool) -> None:
    if fits:
        return check_text(_generation(), prompt, FACTS)
    with pytest.raises(InvalidRequest, match="262144 characters") as caught:
        check_text(_generation(), prompt, FACTS)
    assert caught.value.code == "context_length_exceeded"


def test_the_images_of_one_request_are_bounded_together() -> None:
    media = [Media(bytes(32), 0, 1, Blob("float32", (4, 8), b"")) for _ in range(3)]
    prompts = [EncodedPrompt(PackedTokens(b""), media=(one, media[0])) for one in media]
    check_pixels(_generation(), prompts, 3 * 128)
    with pytest.raises(InvalidRequest, match="more than 0 MiB as the model") as caught:
        check_pixels(_generation(), prompts, 3 * 128 - 1)
    assert caught.value.code == "image_too_large" and caught.value.param == "prompt"
