"""Pieces: the output of a parser, in the order of the text."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class Content(Struct, frozen=True, gc=False, array_like=True, tag_field="piece", tag="content"):
    """Text for the reader of the answer."""

    text: str


class Reasoning(Struct, frozen=True, gc=False, array_like=True, tag_field="piece", tag="reasoning"):
    """Text of the model's thinking."""

    text: str


class CallStart(
    Struct, frozen=True, gc=False, array_like=True, tag_field="piece", tag="call_start"
):
    """A tool call begins; the pieces up to its end belong to it."""

    index: int
    """Index of the call in the answer, from 0; a call with an error counts."""
    id: str
    name: str


class Arguments(Struct, frozen=True, gc=False, array_like=True, tag_field="piece", tag="arguments"):
    """Part of a call's arguments: all parts joined are the text of a JSON object."""

    index: int
    text: str


class CallEnd(Struct, frozen=True, gc=False, array_like=True, tag_field="piece", tag="call_end"):
    """A tool call is complete. A call without this piece must not be executed."""

    index: int


class ParseError(Struct, frozen=True, gc=False, array_like=True, tag_field="piece", tag="error"):
    """The last piece: a call has started and cannot be completed. Text after it is not read."""

    index: int
    type: Literal["incomplete_tool_call", "invalid_tool_call"]
    message: str


Piece = Content | Reasoning | CallStart | Arguments | CallEnd | ParseError
