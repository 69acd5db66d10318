"""Answers about a request that is not run."""

from __future__ import annotations

from typing import Literal

import msgspec
from pydantic import RootModel

from baton.output_parsing import Start
from baton_gateway.schemas.chat import ChatRequest
from baton_gateway.schemas.completions import CompletionRequest


class RenderedPrompt(msgspec.Struct):
    """One prompt as the model would read it."""

    prompt: str
    """Text of the tokens, special ones included."""
    token_ids: list[int]
    max_tokens: int
    """Most tokens that would be generated."""
    start: Start | None = None
    """Where the output of a chat would begin: in thinking, or in content."""


class RenderResponse(msgspec.Struct):
    """Response of /v1/chat/completions/render and /v1/completions/render."""

    model: str
    prompts: list[RenderedPrompt]
    object: Literal["render"] = "render"


class QuoteRequest(RootModel[ChatRequest | CompletionRequest]):
    """POST /v1/quote: the request that is not to be run."""


class QuoteResponse(msgspec.Struct, kw_only=True):
    """Response of POST /v1/quote. Times are in milliseconds, null before any measurement."""

    object: Literal["quote"] = "quote"
    model: str
    prompt_tokens: int
    max_completion_tokens: int
    """Most tokens that all choices together would generate."""
    queue_position: int
    """Sequences of this system that wait now."""
    queue_ms: float | None
    """Until the tokens that wait now have been computed."""
    prefill_ms: float | None
    """To read the prompts, of which nothing is assumed to be cached."""
    decode_ms: float | None
    """To write the longest answer."""
    total_ms: float | None
