"""Completion requests: defaults and prompt formats."""

from __future__ import annotations

from typing import Any

import pytest

from baton_gateway.http.body import build
from baton_gateway.schemas.completions import CompletionRequest


def test_defaults_are_openais() -> None:
    completion = build({"model": "m", "prompt": "x"}, CompletionRequest)
    assert (completion.max_tokens, completion.prompt, completion.echo) == (16, ("x",), False)
    many = build(
        {"model": "m", "prompt": "x", "stop": ["a", "b", "c", "d", "e"]}, CompletionRequest
    )
    assert len(many.stop) == 5, "evaluations of code send six"


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ("x", ("x",)),
        ([1, 2], ((1, 2),)),
        (["a", "b"], ("a", "b")),
        ([[1], [2, 3]], ((1,), (2, 3))),
    ],
)
def test_shapes_of_a_prompt(given: Any, prompts: Any) -> None:
    assert build({"model": "m", "prompt": given}, CompletionRequest).prompt == prompts
