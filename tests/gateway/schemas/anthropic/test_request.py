"""Requests of the Messages API."""

from __future__ import annotations

from typing import Any

from baton_gateway.http.body import build
from baton_gateway.schemas.anthropic.request import CountTokensRequest, MessagesRequest

USER = {"role": "user", "content": "hi"}
PROMPT: dict[str, Any] = {"model": "m", "messages": [USER]}


def test_a_chat_asks_for_the_same() -> None:
    given = {"max_tokens": 9, "top_k": 3, "stop_sequences": ["a"], "metadata": {"user_id": "u"}}
    chat = build(PROMPT | given | {"stream": True}, MessagesRequest).chat
    assert (chat.limit, chat.top_k, chat.stop, chat.user) == (9, 3, ("a",), "u")
    assert chat.stream and chat.add_generation_prompt and not chat.continue_final_message
    assert chat.chat_template_kwargs == {}, "the model's own default"
    assert chat.reasoning_effort is None
    given["output_config"] = {"effort": "max"}
    assert build(PROMPT | given, MessagesRequest).chat.reasoning_effort == "max"
    given |= {"thinking": {"type": "disabled"}, "chat_template_kwargs": {"a": 1}, "cache_salt": "s"}
    chat = build(PROMPT | given, MessagesRequest).chat
    assert chat.chat_template_kwargs == {"enable_thinking": False, "a": 1}
    assert chat.cache_salt == "s"


def test_counting_needs_no_limit() -> None:
    chat = build(PROMPT | {"system": "s"}, CountTokensRequest).chat
    assert [message["role"] for message in chat.messages] == ["system", "user"]
    assert build(PROMPT | {"system": []}, CountTokensRequest).chat.messages == [USER]
