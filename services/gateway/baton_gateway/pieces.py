"""Pieces of an output: content, thinking and tool calls.

The text of a delta is parsed into pieces once, in `Sequence.deliver`; streamed and complete
responses are both built from them.
"""

from __future__ import annotations

from typing import TypeAlias

from baton.output_parsing import Arguments, Content, Piece, Reasoning

Pieces: TypeAlias = tuple[Piece, ...]


def plain(text: str) -> Pieces:
    """Return the pieces of text that is only content."""
    return (Content(text),) if text else ()


def merge(first: Pieces, later: Pieces) -> Pieces:
    """Return the pieces of a text and its continuation; adjacent pieces of one kind are joined."""
    if first and later and (joined := _combined(first[-1], later[0])) is not None:
        return (*first[:-1], joined, *later[1:])
    return first + later


def _combined(first: Piece, second: Piece) -> Piece | None:
    """Two pieces as one; None if they are of different kinds."""
    match first, second:
        case Content(a), Content(b):
            return Content(a + b)
        case Reasoning(a), Reasoning(b):
            return Reasoning(a + b)
        case Arguments(i, a), Arguments(j, b) if i == j:
            return Arguments(i, a + b)
    return None
