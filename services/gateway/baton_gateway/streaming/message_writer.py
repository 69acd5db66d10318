"""Messages of the Messages API: one choice as content blocks.

https://docs.anthropic.com/en/api/messages
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from baton.output_parsing import Arguments, CallEnd, CallStart, Content, Piece, Reasoning
from baton_gateway.generation.choice import Choice
from baton_gateway.generation.output import Started
from baton_gateway.schemas.anthropic.response import (
    ContentBlock,
    Message,
    MessageUsage,
    TextBlock,
    ThinkingBlock,
    ThinkingTokens,
    ToolUseBlock,
)
from baton_gateway.schemas.anthropic.signature import sign
from baton_gateway.streaming.head import Head
from baton_gateway.streaming.message_transcript import MessageTranscript, stop_of, tool_use_id


class MessageWriter:
    """Writes the one choice of a request as a message."""

    def __init__(self, head: Head) -> None:
        self._head = head

    def response(self, started: Started, choices: list[Choice]) -> Message:
        """Return the complete response."""
        [choice] = choices
        content = content_blocks(choice.pieces)
        called = any(isinstance(block, ToolUseBlock) for block in content)
        reason, sequence = stop_of(choice.reason, choice.stop, called=called)
        return Message(
            id=self._head.id,
            model=self._head.model,
            content=content,
            stop_reason=reason,
            stop_sequence=sequence,
            usage=MessageUsage(
                len(started.prompts[0]) - choice.cached,
                len(choice.tokens),
                choice.cached,
                ThinkingTokens(choice.reasoning_tokens),
            ),
        )

    def transcript(self) -> MessageTranscript:
        """Return a new transcript."""
        return MessageTranscript(self._head)


def content_blocks(pieces: Iterable[Piece]) -> list[ContentBlock]:
    """Return the blocks of an answer; an unfinished call is left out."""
    blocks: list[ContentBlock] = []
    call, arguments = CallStart(0, "", ""), ""
    for piece in pieces:
        last = blocks[-1] if blocks else None
        match piece:
            case Content(text) if isinstance(last, TextBlock):
                last.text += text
            case Content(text):
                blocks.append(TextBlock(text))
            case Reasoning(text) if isinstance(last, ThinkingBlock):
                last.thinking += text
            case Reasoning(text):
                blocks.append(ThinkingBlock(text, ""))
            case CallStart():
                call, arguments = piece, ""
            case Arguments(_, text):
                arguments += text
            case CallEnd():
                parsed = msgspec.json.decode(arguments or "{}")
                blocks.append(ToolUseBlock(tool_use_id(call.id), call.name, parsed))
    for block in blocks:
        if isinstance(block, ThinkingBlock):
            block.signature = sign(block.thinking)
    return blocks
