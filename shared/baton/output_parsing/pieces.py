"""What a parser makes of the text: a list of pieces, in the order in which they are read."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class Content(Struct, frozen=True, gc=False, array_like=True, tag_field="piece", tag="content"):
    """Text for the reader of the answer."""

    text: str


class Reasoning(Struct, frozen=True, gc=False, array_like=True, tag_field="piece", tag="reasoning"):
    """Text that the model wrote while it was thinking."""

    text: str


class CallStart(
    Struct, frozen=True, gc=False, array_like=True, tag_field="piece", tag="call_start"
):
    """A tool call begins; the pieces up to its end belong to it."""

    index: int
    """From 0; counts the calls of an answer, the one with an error included."""
    id: str
    name: str


class Arguments(Struct, frozen=True, gc=False, array_like=True, tag_field="piece", tag="arguments"):
    """Part of a call's arguments: all parts together are the text of a JSON object."""

    index: int
    text: str


class CallEnd(Struct, frozen=True, gc=False, array_like=True, tag_field="piece", tag="call_end"):
    """A tool call is whole. A call without this piece must not be executed."""

    index: int


class ParseError(Struct, frozen=True, gc=False, array_like=True, tag_field="piece", tag="error"):
    """The last piece: a call was begun and cannot be finished. Text behind it is not read."""

    index: int
    type: Literal["incomplete_tool_call", "invalid_tool_call"]
    message: str


Piece = Content | Reasoning | CallStart | Arguments | CallEnd | ParseError
