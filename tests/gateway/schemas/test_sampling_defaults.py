"""What a model recommends holds for what a request does not say."""

from __future__ import annotations

from typing import Any

from baton_gateway.http.body import build
from baton_gateway.schemas.chat import ChatRequest
from baton_gateway.schemas.completions import CompletionRequest
from baton_gateway.schemas.sampling_defaults import with_defaults

GIVEN = {"model": "m", "prompt": "x"}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
DEFAULTS = {"temperature": 0.7, "top_k": 20, "max_new_tokens": 30}


def completed(**fields: Any) -> CompletionRequest:
    return with_defaults(build(GIVEN | fields, CompletionRequest), DEFAULTS)


def test_missing_fields_are_filled_in() -> None:
    body = completed()
    assert (body.temperature, body.top_k, body.max_tokens, body.top_p) == (0.7, 20, 30, 1.0)
    assert with_defaults(body, {}) is body


def test_what_is_given_stays() -> None:
    body = completed(temperature=1.0, top_k=0, max_tokens=5)
    assert (body.temperature, body.top_k, body.max_tokens) == (1.0, 0, 5)


def test_a_chat_has_two_names_for_its_limit() -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        assert with_defaults(build(CHAT | {name: 5}, ChatRequest), DEFAULTS).limit == 5
    assert with_defaults(build(CHAT, ChatRequest), DEFAULTS).limit == 30
    least = build(CHAT | {"min_tokens": 40}, ChatRequest)
    assert with_defaults(least, DEFAULTS).limit == 40


def test_beams_are_not_sampled() -> None:
    body = completed(use_beam_search=True, beam_width=2, temperature=0)
    assert body.top_k == 0 and body.max_tokens == 16 and body.beams is not None
