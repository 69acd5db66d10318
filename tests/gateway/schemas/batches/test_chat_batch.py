"""Requests with several conversations."""

from __future__ import annotations

from typing import Any

from baton_gateway.http.body import build
from baton_gateway.schemas.batches.chat_batch import ChatBatchRequest


def test_every_conversation_is_a_chat_with_the_same_parameters() -> None:
    messages: list[Any] = [[{"role": "user", "content": text}] for text in ("a", "b")]
    body = build({"model": "m", "messages": messages, "top_k": 3}, ChatBatchRequest)
    assert [(chat.messages, chat.top_k) for chat in body.chats] == [(m, 3) for m in messages]
