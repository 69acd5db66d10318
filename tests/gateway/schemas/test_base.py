"""Requests: defaults, null, and prompt formats."""

from __future__ import annotations

from typing import Any

import pytest

from baton.errors import InvalidRequest
from baton_gateway.http.body import build
from baton_gateway.schemas.base import (
    ChatRequest,
    CompletionRequest,
    TokenizeRequest,
)

MESSAGES = [{"role": "user", "content": "x"}]


def test_defaults_are_openais() -> None:
    chat = build({"model": "m", "messages": MESSAGES}, ChatRequest)
    assert (chat.temperature, chat.top_p, chat.n, chat.limit, chat.stop) == (1.0, 1.0, 1, None, ())
    completion = build({"model": "m", "prompt": "x"}, CompletionRequest)
    assert (completion.max_tokens, completion.prompt, completion.echo) == (16, ("x",), False)


def test_null_is_the_default() -> None:
    nulls = dict.fromkeys(set(ChatRequest.model_fields) - {"model", "messages", "stream"})
    given = {"model": "m", "messages": MESSAGES}
    assert build(given | nulls, ChatRequest) == build(given, ChatRequest)


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


def test_two_names_of_one_limit() -> None:
    for fields in ({"max_tokens": 5}, {"max_completion_tokens": 5}):
        assert build({"model": "m", "messages": MESSAGES} | fields, ChatRequest).limit == 5
    same = {"max_tokens": 5, "max_completion_tokens": 5}
    assert build({"model": "m", "messages": MESSAGES} | same, ChatRequest).limit == 5


def test_continuing_the_final_message() -> None:
    given = {"model": "m", "messages": MESSAGES, "continue_final_message": True}
    assert build(given, ChatRequest).continue_final_message
    build(given | {"add_generation_prompt": False}, ChatRequest)
    with pytest.raises(InvalidRequest) as caught:
        build(given | {"add_generation_prompt": True}, ChatRequest)
    assert caught.value.param == "continue_final_message"


def test_values_do_not_leak_between_requests() -> None:
    first = build({"prompt": "x"}, TokenizeRequest)
    assert first.chat_template_kwargs == {} and first.tools == []
    assert build({"prompt": "x"}, TokenizeRequest) == first
