"""Pieces: what the text of an output is, as clients see it.

The text of a delta becomes pieces once, in `Sequence.deliver`; streamed and whole responses are
both made of them.
"""

from __future__ import annotations

from typing import TypeAlias

from baton.output_parsing import Arguments, Content, Piece, Reasoning

Pieces: TypeAlias = tuple[Piece, ...]


def plain(text: str) -> Pieces:
    """Return the pieces of text that is only content."""
    return (Content(text),) if text else ()


def merge(first: Pieces, later: Pieces) -> Pieces:
    """Return the pieces of a text and its continuation; neighbours of one kind become one."""
    if first and later and (both := _joined(first[-1], later[0])) is not None:
        return (*first[:-1], both, *later[1:])
    return first + later


def _joined(one: Piece, next: Piece) -> Piece | None:
    """Two pieces as one; None if they are of different kinds."""
    match one, next:
        case Content(a), Content(b):
            return Content(a + b)
        case Reasoning(a), Reasoning(b):
            return Reasoning(a + b)
        case Arguments(i, a), Arguments(j, b) if i == j:
            return Arguments(i, a + b)
    return None
