"""Fields common to chat and completions: defaults, choices per prompt, what excludes what."""

from __future__ import annotations

from typing import Any

import pytest

from baton.errors import InvalidRequest
from baton_gateway.http.body import build
from baton_gateway.schemas.completions import CompletionRequest

GIVEN = {"model": "m", "prompt": "x"}


def test_defaults_are_openais() -> None:
    body = build(GIVEN, CompletionRequest)
    assert (body.temperature, body.top_p, body.n, body.stop) == (1.0, 1.0, 1, ())


def test_beams_run_at_once() -> None:
    searched = build(GIVEN | {"use_beam_search": True, "beam_width": 4}, CompletionRequest)
    assert (searched.candidates, searched.at_once) == (1, 4)
    assert build(GIVEN | {"best_of": 3}, CompletionRequest).at_once == 3


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"min_tokens": 17}, "min_tokens"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ],
)
def test_what_excludes_what(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        build(GIVEN | fields, CompletionRequest)
    assert caught.value.param == param
