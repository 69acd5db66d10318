"""The response object.

https://platform.openai.com/docs/api-reference/responses/object
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from baton_gateway.schemas.responses.output_items import OutputItem

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class InputDetails(msgspec.Struct):
    """`usage.input_tokens_details`"""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputDetails(msgspec.Struct):
    """`usage.output_tokens_details`"""

    reasoning_tokens: int


class ResponseUsage(msgspec.Struct):
    """Token counts of a response."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int

    @classmethod
    def of(cls, prompt: int, cached: int, output: int, reasoning: int) -> ResponseUsage:
        """Create the counts and their total."""
        details = InputDetails(cached), OutputDetails(reasoning)
        return cls(prompt, details[0], output, details[1], prompt + output)


class ResponseError(msgspec.Struct):
    """`error` of a response that failed."""

    code: str
    message: str


class IncompleteDetails(msgspec.Struct):
    """`incomplete_details`"""

    reason: Literal["max_output_tokens"]


class ConversationId(msgspec.Struct):
    """`conversation`"""

    id: str


class Response(msgspec.Struct, kw_only=True):
    """A response in any state."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: Status
    model: str
    output: list[OutputItem]
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    usage: ResponseUsage | None = None
    background: bool = False
    previous_response_id: str | None = None
    conversation: ConversationId | None = None
    service_tier: Literal["default"] = "default"

    frequency_penalty: float = 0.0
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    presence_penalty: float = 0.0
    prompt_cache_key: str | None = None
    reasoning: dict[str, Any]
    safety_identifier: str | None = None
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    user: str | None = None


class CountedInput(msgspec.Struct):
    """Response of POST /v1/responses/input_tokens."""

    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"
