"""Events of a streamed response. An event's type is its first field.

https://platform.openai.com/docs/api-reference/responses-streaming
"""

from __future__ import annotations

import msgspec

from baton_gateway.generation.logprobs import ChatToken
from baton_gateway.schemas.responses.output_items import OutputItem, OutputText, ReasoningText
from baton_gateway.schemas.responses.response import Response


class Event(msgspec.Struct, kw_only=True, tag_field="type", tag="event"):
    """Fields of all events."""

    sequence_number: int
    """Counts from 0."""


class ResponseEvent(Event, kw_only=True, tag="response"):
    """The response begins, or ends in one of the ways below."""

    response: Response


class Created(ResponseEvent, tag="response.created"):
    """First event."""


class InProgress(ResponseEvent, tag="response.in_progress"):
    """Generation has begun."""


class Completed(ResponseEvent, tag="response.completed"):
    """Last event: the response is complete."""


class Incomplete(ResponseEvent, tag="response.incomplete"):
    """Last event: the limit of tokens was reached."""


class Failed(ResponseEvent, tag="response.failed"):
    """Last event: an error ended the response."""


class ItemEvent(Event, kw_only=True, tag="item"):
    """An item of the output."""

    output_index: int
    item: OutputItem


class ItemAdded(ItemEvent, tag="response.output_item.added"):
    """An item begins; the previous one is done."""


class ItemDone(ItemEvent, tag="response.output_item.done"):
    """An item is done."""


class DeltaEvent(Event, kw_only=True, tag="delta"):
    """Base of events within an item."""

    item_id: str
    output_index: int


class PartEvent(DeltaEvent, kw_only=True, tag="part"):
    """A part of an item."""

    content_index: int = 0
    part: OutputText | ReasoningText


class PartAdded(PartEvent, tag="response.content_part.added"):
    """A part begins."""


class PartDone(PartEvent, tag="response.content_part.done"):
    """A part is done."""


class TextDelta(DeltaEvent, kw_only=True, tag="response.output_text.delta"):
    """The next part of a text."""

    content_index: int = 0
    delta: str
    logprobs: list[ChatToken]


class TextDone(DeltaEvent, kw_only=True, tag="response.output_text.done"):
    """A text is done."""

    content_index: int = 0
    text: str
    logprobs: list[ChatToken]


class ReasoningDelta(DeltaEvent, kw_only=True, tag="response.reasoning_text.delta"):
    """The next part of the thinking."""

    content_index: int = 0
    delta: str


class ReasoningDone(DeltaEvent, kw_only=True, tag="response.reasoning_text.done"):
    """The thinking is done."""

    content_index: int = 0
    text: str


class ArgumentsDelta(DeltaEvent, tag="response.function_call_arguments.delta"):
    """The next part of the text of a call's arguments."""

    delta: str


class ArgumentsDone(DeltaEvent, tag="response.function_call_arguments.done"):
    """The arguments of a call are done."""

    name: str
    arguments: str


class InputDelta(DeltaEvent, tag="response.custom_tool_call_input.delta"):
    """The next part of the input of a custom tool's call."""

    delta: str


class InputDone(DeltaEvent, tag="response.custom_tool_call_input.done"):
    """The input of a custom tool's call is done."""

    input: str


AnyEvent = (
    Created
    | InProgress
    | Completed
    | Incomplete
    | Failed
    | ItemAdded
    | ItemDone
    | PartAdded
    | PartDone
    | TextDelta
    | TextDone
    | ReasoningDelta
    | ReasoningDone
    | ArgumentsDelta
    | ArgumentsDone
    | InputDelta
    | InputDone
)
"""One event of a stream."""
