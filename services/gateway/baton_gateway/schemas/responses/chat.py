"""The chat request behind a response."""

from __future__ import annotations

from typing import Any

from baton_gateway.schemas.chat import ChatRequest


class ResponseChat(ChatRequest):
    """A chat, and the request fields that its response repeats. It is complete in itself: another
    gateway can continue it without lookups."""

    response: dict[str, Any] = {}
    """Fields of the response; see `ResponsesRequest.repeated`."""
    input_of: str | None = None
    """Custom tool whose input is the whole answer; None if the answer is a text."""
    encrypt_for: str | None = None
    """Tenant for whom thinking is encrypted and included next to its text; None for plain text
    only."""
