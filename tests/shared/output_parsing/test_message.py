from __future__ import annotations

from baton.output_parsing.message import Message, ToolCall, delta
from baton.output_parsing.pieces import (
    Arguments,
    CallEnd,
    CallStart,
    Content,
    ParseError,
    Piece,
    Reasoning,
)

PIECES: list[Piece] = [
    Reasoning("r"),
    Content("a"),
    Content("b"),
    CallStart(0, "i", "f"),
    Arguments(0, "{"),
    Arguments(0, "}"),
    CallEnd(0),
]
ERROR = ParseError(1, "incomplete_tool_call", "why")


def test_pieces_put_together() -> None:
    message = Message()
    message.add(PIECES)
    assert (message.reasoning, message.content) == ("r", "ab")
    assert message.tool_calls == [ToolCall("i", "f", "{}")]
    assert message.finish_reason == "tool_calls" and message.error is None


def test_a_call_with_an_error_is_no_call() -> None:
    message = Message()
    message.add([CallStart(0, "i", "f"), Arguments(0, "{"), ERROR])
    assert message.tool_calls == [] and message.error == ERROR
    assert message.finish_reason == "stop" and message.content is None


def test_deltas() -> None:
    assert [delta(piece) for piece in PIECES[2:5]] == [
        {"content": "b"},
        {
            "tool_calls": [
                {
                    "index": 0,
                    "id": "i",
                    "type": "function",
                    "function": {"name": "f", "arguments": ""},
                }
            ]
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]},
    ]
    assert delta(Reasoning("r")) == {"reasoning": "r"}
    assert delta(CallEnd(0)) is None and delta(ERROR) is None
