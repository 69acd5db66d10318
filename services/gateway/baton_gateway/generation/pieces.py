"""Pieces: what the text of an output is, as clients see it.

The text of a delta becomes pieces once, in `Sequence.deliver`; streamed and whole responses are
both made of them.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class Content(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="content"):
    """Text of the answer itself."""

    text: str

    def then(self, later: Piece) -> Content | None:
        """Merge this piece with the next one; None when that is of another kind."""
        return Content(self.text + later.text) if isinstance(later, Content) else None


Piece: TypeAlias = Content
"""Any piece. Kinds are told apart by type."""

Pieces: TypeAlias = tuple[Piece, ...]


def plain(text: str) -> Pieces:
    """Return the pieces of text that is only content."""
    return (Content(text),) if text else ()


def merge(first: Pieces, later: Pieces) -> Pieces:
    """Return the pieces of a text and its continuation; neighbours of one kind become one."""
    if first and later and (both := first[-1].then(later[0])) is not None:
        return (*first[:-1], both, *later[1:])
    return first + later
