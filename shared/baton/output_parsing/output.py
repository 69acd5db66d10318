"""Output: collects the pieces of one `feed`, joining adjacent text of one kind."""

from __future__ import annotations

from typing import Literal

from baton.output_parsing.pieces import Arguments, Content, Piece, Reasoning

_Kind = Literal["content", "reasoning", "arguments"]


class Output:
    """Pieces that were not taken yet."""

    __slots__ = ("_index", "_kind", "_parts", "_pieces")

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self._parts: list[str] = []
        self._kind: _Kind = "content"
        self._index = 0

    def content(self, text: str) -> None:
        """Add content."""
        self._add("content", text)

    def reasoning(self, text: str) -> None:
        """Add reasoning."""
        self._add("reasoning", text)

    def arguments(self, index: int, text: str) -> None:
        """Add to the arguments of call `index`."""
        if self._index != index:
            self._flush()
        self._index = index
        self._add("arguments", text)

    def put(self, piece: Piece) -> None:
        """Add a piece that is no text."""
        self._flush()
        self._pieces.append(piece)

    def take(self) -> list[Piece]:
        """The pieces since the last call."""
        self._flush()
        pieces, self._pieces = self._pieces, []
        return pieces

    def _add(self, kind: _Kind, text: str) -> None:
        if kind is not self._kind:
            self._flush()
        self._kind = kind
        self._parts.append(text)

    def _flush(self) -> None:
        text = "".join(self._parts)
        self._parts.clear()
        if not text:
            return
        if self._kind == "arguments":
            self._pieces.append(Arguments(self._index, text))
        else:
            self._pieces.append(Content(text) if self._kind == "content" else Reasoning(text))
