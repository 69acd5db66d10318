"""Requests and responses of vLLM's /tokenize and /detokenize."""

from __future__ import annotations

from typing import Annotated, Any, Self

import msgspec
from pydantic import BeforeValidator, model_validator

from baton_gateway.http.errors import invalid, missing
from baton_gateway.schemas.base import Request
from baton_gateway.schemas.chat_messages import check_messages
from baton_gateway.schemas.fields import (
    SOUND,
    ModelName,
    ProcessorKwargs,
    TemplateKwargs,
    token_ids,
)
from baton_gateway.schemas.tools import check_tools

_MAX_IDS = 1_000_000


def _detokenized_ids(value: object) -> tuple[int, ...]:
    return token_ids(value, "tokens", _MAX_IDS)


class TokenizeRequest(Request):
    """POST /tokenize (vLLM): a prompt or messages."""

    model: ModelName | None = None
    prompt: str | None = None
    messages: Annotated[list[dict[str, Any]] | None, BeforeValidator(check_messages)] = None
    add_special_tokens: bool = True
    return_token_strs: bool = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: TemplateKwargs = {}
    mm_processor_kwargs: ProcessorKwargs = {}
    tools: Annotated[list[dict[str, Any]], BeforeValidator(check_tools)] = []

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.prompt is None and self.messages is None:
            raise missing("prompt")
        if self.prompt is not None and self.messages is not None:
            raise invalid("prompt", "Send either 'prompt' or 'messages', not both.")
        return self

    @property
    def sound(self) -> bool | None:
        """As `ChatRequest.sound`."""
        return self.mm_processor_kwargs.get(SOUND)

    @classmethod
    def _special(cls) -> frozenset[str]:
        return frozenset({"add_special_tokens", "mm_processor_kwargs"})

    @classmethod
    def _not_null(cls) -> frozenset[str]:
        return frozenset()


class DetokenizeRequest(Request):
    """POST /detokenize"""

    model: ModelName | None = None
    tokens: Annotated[tuple[int, ...], BeforeValidator(_detokenized_ids)]
    skip_special_tokens: bool = False

    @classmethod
    def _not_null(cls) -> frozenset[str]:
        return frozenset({"tokens"})


class TokenizeResponse(msgspec.Struct):
    """Response of /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeResponse(msgspec.Struct):
    """Response of /detokenize."""

    prompt: str
