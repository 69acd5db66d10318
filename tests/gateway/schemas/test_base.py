"""Null means the default."""

from __future__ import annotations

from baton_gateway.http.body import build
from baton_gateway.schemas.chat import ChatRequest

MESSAGES = [{"role": "user", "content": "x"}]


def test_null_is_the_default() -> None:
    nulls = dict.fromkeys(set(ChatRequest.model_fields) - {"model", "messages", "stream"})
    given = {"model": "m", "messages": MESSAGES}
    assert build(given | nulls, ChatRequest) == build(given, ChatRequest)
