"""Events of a streamed message.

message_start (block_start block_delta* block_stop)* message_delta message_stop

Invariant: blocks open and close in order, at most one is open, and indexes count from 0.

https://docs.anthropic.com/en/api/messages-streaming
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from baton.output_parsing import Arguments, CallEnd, CallStart, Content, Piece, Reasoning
from baton_gateway.generation.output import OutputDelta, Started
from baton_gateway.schemas.anthropic.response import (
    BlockDelta,
    BlockEvent,
    BlockStart,
    BlockStop,
    ContentBlock,
    InputJsonDelta,
    Message,
    MessageDelta,
    MessageStart,
    MessageStop,
    MessageUsage,
    SignatureDelta,
    StopFields,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ThinkingTokens,
    ToolUseBlock,
)
from baton_gateway.schemas.anthropic.signature import Signature
from baton_gateway.streaming.head import Head

Events = Iterator[msgspec.Struct]


class MessageTranscript:
    """Converts the deltas of the one choice to events, one block after the other."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self._prompt = self._cached = self._output = self._thinking = 0
        self._begun = self._called = False
        self._reason: str | None = None
        self._stop: str | int | None = None
        self._index = -1
        """Index of the newest block."""
        self._open: type[ContentBlock] | None = None
        """Kind of the open block."""
        self._signature = Signature()

    def opening(self, started: Started) -> Iterable[bytes]:
        """Return nothing: message_start is sent with the first delta, which has the number of
        cached tokens."""
        self._prompt = len(started.prompts[0])
        return ()

    def add(self, delta: OutputDelta) -> list[bytes]:
        """Return the events of a delta."""
        return [msgspec.json.encode(event) for event in self._add(delta)]

    def closing(self) -> Iterator[bytes]:
        """Yield the end of the message."""
        reason, sequence = stop_of(self._reason, self._stop, called=self._called)
        yield msgspec.json.encode(MessageDelta(StopFields(reason, sequence), self._usage()))
        yield msgspec.json.encode(MessageStop())

    def _add(self, delta: OutputDelta) -> Events:
        self._cached = delta.cached
        if not self._begun:
            self._begun = True
            yield MessageStart(self._empty())
        self._output += len(delta.tokens)
        self._thinking += delta.reasoning_tokens
        for piece in delta.pieces:
            yield from self._piece(piece)
        if delta.reason is not None:
            self._reason, self._stop = delta.reason, delta.stop
            yield from self._close()

    def _piece(self, piece: Piece) -> Events:
        match piece:
            case Content(text):
                yield from self._enter(TextBlock(""))
                yield self._event(TextDelta(text))
            case Reasoning(text):
                yield from self._enter(ThinkingBlock("", ""))
                self._signature.add(text)
                yield self._event(ThinkingDelta(text))
            case CallStart(_, call_id, name):
                yield from self._close()
                yield from self._enter(ToolUseBlock(tool_use_id(call_id), name, {}))
            case Arguments(_, text):
                yield self._event(InputJsonDelta(text))
            case CallEnd():
                self._called = True
                yield from self._close()

    def _enter(self, block: ContentBlock) -> Events:
        """Open a block, unless one of its kind is open."""
        if self._open is type(block):
            return
        yield from self._close()
        self._open, self._index = type(block), self._index + 1
        yield BlockStart(self._index, block)

    def _close(self) -> Events:
        """Close the open block, if there is one."""
        if self._open is None:
            return
        if self._open is ThinkingBlock:
            yield self._event(SignatureDelta(self._signature.text))
            self._signature = Signature()
        self._open = None
        yield BlockStop(self._index)

    def _event(self, delta: BlockDelta) -> BlockEvent:
        assert self._open is not None
        return BlockEvent(self._index, delta)

    def _empty(self) -> Message:
        return Message(
            id=self._head.id,
            model=self._head.model,
            content=[],
            stop_reason=None,
            stop_sequence=None,
            usage=self._usage(),
        )

    def _usage(self) -> MessageUsage:
        thinking = ThinkingTokens(self._thinking)
        return MessageUsage(self._prompt - self._cached, self._output, self._cached, thinking)


def stop_of(reason: str | None, stop: str | int | None, *, called: bool) -> tuple[str, str | None]:
    """Return `stop_reason` and `stop_sequence` of an answer that has ended.

    Args:
        stop: the stop string or stop id that ended it.
        called: whether it contains a complete tool call.
    """
    if reason == "length":
        return "max_tokens", None
    if isinstance(stop, str):
        return "stop_sequence", stop
    return ("tool_use" if called else "end_turn"), None


def tool_use_id(call_id: str) -> str:
    """Return the id of a call as the Messages API has it."""
    return f"toolu_{call_id.removeprefix('call_')}"
