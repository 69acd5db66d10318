"""Beam search fields of requests."""

from __future__ import annotations

from typing import Any

import pytest

from baton.errors import InvalidRequest
from baton_gateway.generation.request import BeamSearchOptions
from baton_gateway.schemas.beam_search import MAX_WIDTH
from baton_gateway.schemas.completions import CompletionRequest

pytestmark = pytest.mark.row("F09.11")


def request(**fields: Any) -> CompletionRequest:
    return CompletionRequest.model_validate({"model": "m", "prompt": "x"} | fields)


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({}, None),
        ({"use_beam_search": False, "length_penalty": 1.0, "early_stopping": False}, None),
        ({"use_beam_search": None, "beam_width": None}, None),
        ({"use_beam_search": True}, BeamSearchOptions(1)),
        ({"use_beam_search": True, "n": 3}, BeamSearchOptions(3)),
        ({"use_beam_search": True, "n": 2, "beam_width": 5}, BeamSearchOptions(5)),
        ({"use_beam_search": True, "length_penalty": -0.5}, BeamSearchOptions(1, -0.5)),
        ({"use_beam_search": True, "early_stopping": "never"}, BeamSearchOptions(1, 1.0, "never")),
        (
            {"use_beam_search": True, "temperature": 0.0, "top_p": 1.0, "stop": None},
            BeamSearchOptions(1),
        ),
        ({"use_beam_search": True, "response_format": {"type": "text"}}, BeamSearchOptions(1)),
        (
            {"use_beam_search": True, "logprobs": 2, "stop_token_ids": [3], "seed": 1},
            BeamSearchOptions(1),
        ),
    ],
)
def test_wanted(fields: dict[str, Any], wanted: BeamSearchOptions | None) -> None:
    body = request(**fields)
    assert body.beams == wanted
    assert body.at_once == (wanted.width if wanted else 1)


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("length_penalty", {"length_penalty": 2.0}),
        ("beam_width", {"beam_width": 2}),
        ("early_stopping", {"early_stopping": True, "use_beam_search": False}),
        ("early_stopping", {"early_stopping": "often", "use_beam_search": True}),
        ("beam_width", {"use_beam_search": True, "n": 3, "beam_width": 2}),
        ("beam_width", {"use_beam_search": True, "n": MAX_WIDTH + 1}),
        ("temperature", {"use_beam_search": True, "temperature": 0.5}),
        *(
            (name, {"use_beam_search": True, name: value})
            for name, value in {
                "allowed_token_ids": [1],
                "bad_words": ["x"],
                "best_of": 2,
                "echo": True,
                "frequency_penalty": 1.0,
                "guided_choice": ["a"],
                "guided_grammar": 'root ::= "a"',
                "guided_json": {"type": "null"},
                "guided_regex": "a",
                "logit_bias": {"1": 2.0},
                "min_p": 0.1,
                "min_tokens": 1,
                "presence_penalty": 1.0,
                "processors": {"no_repeat_ngram": {"size": 2}},
                "prompt_logprobs": 1,
                "repetition_penalty": 1.1,
                "response_format": {"type": "json_object"},
                "stop": ["x"],
                "structured_outputs": {"regex": "a"},
                "top_k": 5,
                "top_p": 0.9,
                "typical_p": 0.9,
            }.items()
        ),
    ],
)
def test_refused(param: str, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        request(**fields)
    assert (caught.value.param, caught.value.status) == (param, 400)
