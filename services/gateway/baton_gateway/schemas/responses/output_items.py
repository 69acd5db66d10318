"""Items of a response's output. The type of an item, or part, is its first field.

https://platform.openai.com/docs/api-reference/responses/object
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from baton_gateway.generation.logprobs import ChatToken

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputText(msgspec.Struct, tag_field="type", tag="output_text"):
    """Text for the reader of the answer."""

    text: str
    annotations: list[Any] = []
    logprobs: list[ChatToken] = []


class ReasoningText(msgspec.Struct, tag_field="type", tag="reasoning_text"):
    """The model's thinking."""

    text: str


class MessageItem(msgspec.Struct, tag_field="type", tag="message"):
    """A message of the assistant."""

    id: str
    status: ItemStatus
    content: list[OutputText] = []
    role: Literal["assistant"] = "assistant"


class ReasoningItem(msgspec.Struct, tag_field="type", tag="reasoning"):
    """Thinking; summaries are not generated."""

    id: str
    status: ItemStatus
    content: list[ReasoningText] = []
    summary: list[Any] = []
    encrypted_content: str | UnsetType = UNSET


class FunctionCallItem(msgspec.Struct, tag_field="type", tag="function_call"):
    """A call of a function; only a completed one may be run."""

    id: str
    call_id: str
    name: str
    status: ItemStatus
    arguments: str = ""
    """JSON object, as the model wrote it."""
    namespace: str | UnsetType = UNSET


class CustomCallItem(msgspec.Struct, tag_field="type", tag="custom_tool_call"):
    """A call of a custom tool; only a completed one may be run."""

    id: str
    call_id: str
    name: str
    status: ItemStatus
    input: str = ""
    namespace: str | UnsetType = UNSET


OutputItem = MessageItem | ReasoningItem | FunctionCallItem | CustomCallItem
