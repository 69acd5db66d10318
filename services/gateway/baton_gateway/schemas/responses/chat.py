"""The chat that a response is the answer of."""

from __future__ import annotations

from typing import Any

from baton_gateway.schemas.chat import ChatRequest


class ResponseChat(ChatRequest):
    """A chat, and what its response repeats of the request. It is complete in itself: nothing of
    it has to be looked up when the answer is continued elsewhere."""

    response: dict[str, Any] = {}
    """Fields of the response; see `ResponsesRequest.repeated`."""
    input_of: str | None = None
    """Custom tool whose input is the whole answer; None if the answer is a text."""
    encrypt_for: str | None = None
    """Tenant for whom thinking is encrypted beside its text; None means it is not."""
