"""Whole messages."""

from __future__ import annotations

from baton.output_parsing import (
    Arguments,
    CallEnd,
    CallStart,
    Content,
    ParseError,
    Piece,
    Reasoning,
)
from baton_gateway.schemas.anthropic.response import TextBlock, ThinkingBlock, ToolUseBlock
from baton_gateway.schemas.anthropic.signature import sign
from baton_gateway.streaming.message_writer import content_blocks

CALL = [CallStart(0, "call_1", "f"), Arguments(0, '{"a"'), Arguments(0, ": 1}"), CallEnd(0)]


def test_pieces_of_one_kind_are_one_block() -> None:
    pieces: list[Piece] = [Reasoning("h"), Reasoning("m"), Content("a"), Content("b"), *CALL]
    assert content_blocks([*pieces, Content("c")]) == [
        ThinkingBlock("hm", sign("hm")),
        TextBlock("ab"),
        ToolUseBlock("toolu_1", "f", {"a": 1}),
        TextBlock("c"),
    ]


def test_a_call_without_its_end_is_left_out() -> None:
    broken = [*CALL[:2], ParseError(0, "incomplete_tool_call", "x")]
    assert content_blocks([Content("a"), *broken]) == [TextBlock("a")]
    assert content_blocks([CALL[0], CALL[-1]]) == [ToolUseBlock("toolu_1", "f", {})]
