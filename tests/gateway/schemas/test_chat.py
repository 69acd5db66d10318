"""Chat requests: defaults, two names of one limit, the final message."""

from __future__ import annotations

import pytest

from baton.errors import InvalidRequest
from baton_gateway.http.body import build
from baton_gateway.schemas.chat import ChatRequest

MESSAGES = [{"role": "user", "content": "x"}]


def test_defaults_are_openais() -> None:
    chat = build({"model": "m", "messages": MESSAGES}, ChatRequest)
    assert (chat.temperature, chat.top_p, chat.n, chat.limit, chat.stop) == (1.0, 1.0, 1, None, ())


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
