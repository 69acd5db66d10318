"""Responses of OpenAI's completions API.

https://platform.openai.com/docs/api-reference/completions/object

Encoded for every token of every stream, hence msgspec.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from baton_gateway.generation.logprobs import CompletionLogprobs, PromptTable
from baton_gateway.schemas.usage import Usage


class CompletionChoice(msgspec.Struct):
    """`choices[]` of a completion, whole or streamed."""

    index: int
    text: str
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    logprobs: CompletionLogprobs | None = None
    prompt_logprobs: PromptTable | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class Completion(msgspec.Struct, kw_only=True):
    """Response of POST /v1/completions, and one event of its stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET
