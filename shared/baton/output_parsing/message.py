"""Message: the pieces of an answer assembled, and as deltas of OpenAI's API."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from baton.output_parsing.pieces import (
    Arguments,
    CallEnd,
    CallStart,
    Content,
    ParseError,
    Piece,
    Reasoning,
)


@dataclass(slots=True)
class ToolCall:
    """A call; complete once its end was read."""

    id: str
    name: str
    arguments: str = ""
    """Text of a JSON object."""


@dataclass(slots=True)
class Message:
    """A complete answer. Does not depend on how the text was split."""

    reasoning: str | None = None
    content: str | None = None
    tool_calls: list[ToolCall] = field(default_factory=list)
    """Only complete calls."""
    error: ParseError | None = None
    _open: ToolCall | None = None

    def add(self, pieces: Iterable[Piece]) -> None:
        """Add pieces in order."""
        for piece in pieces:
            match piece:
                case Content(text):
                    self.content = (self.content or "") + text
                case Reasoning(text):
                    self.reasoning = (self.reasoning or "") + text
                case CallStart(_, call_id, name):
                    self._open = ToolCall(call_id, name)
                case Arguments(_, text):
                    assert self._open is not None
                    self._open.arguments += text
                case CallEnd():
                    assert self._open is not None
                    self.tool_calls.append(self._open)
                case ParseError():
                    self.error = piece

    @property
    def finish_reason(self) -> str:
        """`tool_calls` if there is one, else `stop`: other reasons are set by the server."""
        return "tool_calls" if self.tool_calls else "stop"


def delta(piece: Piece) -> dict[str, Any] | None:
    """The delta of a chat completion for a piece; None if a delta cannot express it."""
    match piece:
        case Content(text):
            return {"content": text}
        case Reasoning(text):
            return {"reasoning": text}
        case CallStart(index, call_id, name):
            function = {"name": name, "arguments": ""}
            call = {"index": index, "id": call_id, "type": "function", "function": function}
            return {"tool_calls": [call]}
        case Arguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
        case _:
            return None
