"""Responses of OpenAI's chat API.

https://platform.openai.com/docs/api-reference/chat/object

Encoded for every token of every stream, hence msgspec.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from baton_gateway.generation.logprobs import ChatLogprobs, PromptTable
from baton_gateway.schemas.usage import Usage


class FunctionCall(msgspec.Struct):
    """`tool_calls[].function`"""

    name: str
    arguments: str
    """JSON object, as the model wrote it."""


class ChatToolCall(msgspec.Struct):
    """`message.tool_calls[]`"""

    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class ChatMessage(msgspec.Struct):
    """`choices[].message`"""

    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    annotations: list[None] = []
    """Citations, of which there are none."""
    tool_calls: list[ChatToolCall] | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    """The model's thinking."""
    reasoning_content: str | UnsetType = UNSET
    """The same under its older name, which many clients read."""


class ChatChoice(msgspec.Struct):
    """`choices[]` of a chat completion."""

    index: int
    message: ChatMessage
    finish_reason: str | None
    stop_reason: str | int | None = None
    logprobs: ChatLogprobs | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(msgspec.Struct, kw_only=True):
    """Response of POST /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptTable | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class DeltaFunction(msgspec.Struct):
    """`delta.tool_calls[].function`"""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class DeltaToolCall(msgspec.Struct):
    """`delta.tool_calls[]`: the name comes first, then parts of the arguments."""

    index: int
    function: DeltaFunction
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class ChatDelta(msgspec.Struct):
    """`choices[].delta`"""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    tool_calls: list[DeltaToolCall] | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct):
    """`choices[]` of a chunk."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(msgspec.Struct, kw_only=True):
    """One event of a chat stream."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
