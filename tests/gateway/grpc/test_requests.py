"""From `GenerateRequest` to a completion request."""

from __future__ import annotations

import math
from typing import Any

import pytest
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from baton.errors import InvalidRequest
from baton_gateway.grpc.requests import completion, logprobs
from tests.fakes.gateway_engine import MODEL


def asked(text: str = "hi", **params: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(text=text, sampling_params=pb.SamplingParams(**params))


def test_numbers_that_are_0_are_absent() -> None:
    body = completion(asked(), MODEL)
    assert body.prompt == ("hi",) and body.model == MODEL and body.n == 1
    assert (body.temperature, body.top_p, body.repetition_penalty) == (1.0, 1.0, 1.0)
    assert body.model_fields_set.isdisjoint({"temperature", "top_p", "n", "seed"})
    assert completion(asked(temperature=0.0), MODEL).temperature == 0.0


def test_every_parameter_arrives() -> None:
    body = completion(
        asked(
            temperature=0.5, top_p=0.5, top_k=7, min_p=0.25, frequency_penalty=1, n=2,
            presence_penalty=-1, repetition_penalty=1.5, max_tokens=9, min_tokens=3, seed=5,
            stop=["a", "b"], stop_token_ids=[4], ignore_eos=True, skip_special_tokens=True,
            include_stop_str_in_output=True, logit_bias={3: -2.0}, truncate_prompt_tokens=8,
            prompt_logprobs=2, regex="[ab]+",
        ),
        MODEL,
    )  # fmt: skip
    assert (body.temperature, body.top_p, body.top_k, body.min_p) == (0.5, 0.5, 7, 0.25)
    assert (body.frequency_penalty, body.presence_penalty) == (1, -1)
    assert (body.repetition_penalty, body.max_tokens, body.min_tokens) == (1.5, 9, 3)
    assert (body.n, body.seed, body.truncate_prompt_tokens, body.prompt_logprobs) == (2, 5, 8, 2)
    assert tuple(body.stop) == ("a", "b") and tuple(body.stop_token_ids) == (4,)
    assert body.ignore_eos and body.include_stop_str_in_output and body.skip_special_tokens
    assert dict(body.logit_bias) == {3: -2.0}
    assert body.constraint is not None and body.constraint.grammar.kind == "regex"


def test_tokens_are_the_prompt() -> None:
    given = pb.GenerateRequest(tokenized=pb.TokenizedInput(original_text="x", input_ids=[1, 2]))
    assert completion(given, MODEL).prompt == ((1, 2),)


def test_every_constraint_is_one_of_structured_outputs() -> None:
    kinds = {
        "json_schema": '{"type": "integer"}',
        "grammar": 'start: "a"',
        "json_object": True,
        "choice": pb.ChoiceConstraint(choices=["a", "b"]),
        "structural_tag": '{"structures": [{"begin": "<a>", "schema": {}, "end": "</a>"}], '
        '"triggers": ["<a>"]}',
    }
    for name, value in kinds.items():
        assert completion(asked(**{name: value}), MODEL).constraint is not None, name


@pytest.mark.parametrize(
    ("given", "param"),
    [
        (pb.GenerateRequest(), "input"),
        (asked(temperature=math.nan), "temperature"),
        (asked(logit_bias={1: math.inf}), "1"),
        (asked(max_tokens=0), "max_tokens"),
        (asked(top_p=2), "top_p"),
        (asked(n=1000), "n"),
        (asked(structural_tag="{"), "structural_tag"),
        (pb.GenerateRequest(text="a", kv_transfer_params_json="{}"), "kv_transfer_params_json"),
        (pb.GenerateRequest(text="a", data_parallel_rank=0), "data_parallel_rank"),
        (pb.GenerateRequest(text="a", media_refs=pb.MediaRefs()), "media_refs"),
    ],
)
def test_what_cannot_be_is_named(given: pb.GenerateRequest, param: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        completion(given, MODEL)
    assert error.value.param == param


def test_alternatives_are_bounded() -> None:
    assert logprobs(asked()) == -1 and logprobs(asked(logprobs=0)) == 0
    for number in (-1, 21):
        with pytest.raises(InvalidRequest, match="0 to 20"):
            logprobs(asked(logprobs=number))
