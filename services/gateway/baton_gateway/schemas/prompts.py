"""Responses about requests that are not run."""

from __future__ import annotations

from typing import Literal

import msgspec
from pydantic import RootModel

from baton.output_parsing import Start
from baton_gateway.schemas.chat import ChatRequest
from baton_gateway.schemas.completions import CompletionRequest


class RenderedPrompt(msgspec.Struct):
    """One prompt as the model gets it."""

    prompt: str
    """Text of the tokens, including special ones."""
    token_ids: list[int]
    max_tokens: int
    """Maximum tokens that would be generated."""
    start: Start | None = None
    """Part in which the output of a chat would begin: thinking or content."""


class RenderResponse(msgspec.Struct):
    """Response of /v1/chat/completions/render and the same of other APIs."""

    model: str
    prompts: list[RenderedPrompt]
    object: Literal["render"] = "render"


class QuoteRequest(RootModel[ChatRequest | CompletionRequest]):
    """POST /v1/quote: the request to estimate."""


class QuoteResponse(msgspec.Struct, kw_only=True):
    """Response of POST /v1/quote. Times are in milliseconds, null before any measurement."""

    object: Literal["quote"] = "quote"
    model: str
    prompt_tokens: int
    max_completion_tokens: int
    """Maximum tokens that all choices would generate."""
    queue_position: int
    """Sequences that wait now."""
    queue_ms: float | None
    """Time to compute the waiting tokens."""
    prefill_ms: float | None
    """Time to compute the prompts, assuming that none of them is cached."""
    decode_ms: float | None
    """Time to generate the longest answer."""
    total_ms: float | None
