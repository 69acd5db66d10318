"""Events of streamed messages."""

from __future__ import annotations

from array import array

from baton.output_parsing import Arguments, CallEnd, CallStart, Content, Piece, Reasoning
from baton.protocol.packed_tokens import PackedTokens
from baton_gateway.generation.output import OutputDelta, Started
from baton_gateway.schemas.anthropic.signature import sign
from baton_gateway.streaming.event_frames import NamedFrames
from baton_gateway.streaming.head import Head
from baton_gateway.streaming.message_transcript import MessageTranscript, stop_of
from tests.support.gateway.message_events import Event, message_of, named_events

DIRECT = {"caller": {"type": "direct"}}
PIECES: list[Piece] = [
    Reasoning("h"),
    Reasoning("m"),
    Content("a"),
    CallStart(0, "call_1", "f"),
    Arguments(0, "{}"),
    CallEnd(0),
    CallStart(1, "call_2", "f"),
    CallEnd(1),
    Reasoning("again"),
    CallStart(2, "call_3", "g"),
    Arguments(2, "{"),
]


def streamed(deltas: list[OutputDelta]) -> list[Event]:
    transcript, frames = MessageTranscript(Head("msg_1", 0, "m")), NamedFrames()
    payloads = [*transcript.opening(Started((PackedTokens.of([1, 2, 3]),)))]
    for delta in deltas:
        payloads += transcript.add(delta)
    payloads += transcript.closing()
    return named_events(b"".join(map(frames.event, payloads)).decode())


def delta(*pieces: Piece, reason: str | None = None) -> OutputDelta:
    return OutputDelta(0, "", array("i", [7]), pieces=pieces, reason=reason, cached=2)


def test_one_block_is_open_at_a_time_however_it_ends() -> None:
    """The checker asserts it. A call in the middle of which the answer ends is not whole JSON."""
    for count in range(len(PIECES) - 1):
        one = message_of(streamed([delta(*PIECES[:count], reason="length")]))
        parts = [delta(piece) for piece in PIECES[:count]] + [delta(reason="length")]
        other = message_of(streamed(parts))
        assert one["content"] == other["content"] and one["stop_reason"] == "max_tokens"
        assert other["usage"]["output_tokens"] == count + 1


def test_blocks_are_those_of_the_pieces() -> None:
    events = streamed([delta(*PIECES[:8], reason="tool_calls")])
    message = message_of(events)
    assert message["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": sign("hm")},
        {"type": "text", "text": "a", "citations": None},
        {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}, **DIRECT},
        {"type": "tool_use", "id": "toolu_2", "name": "f", "input": {}, **DIRECT},
    ]
    assert message["usage"] == {
        "input_tokens": 1,
        "output_tokens": 1,
        "cache_read_input_tokens": 2,
        "output_tokens_details": {"thinking_tokens": 0},
        "cache_creation_input_tokens": 0,
        "cache_creation": None,
        "server_tool_use": None,
        "service_tier": "standard",
        "inference_geo": None,
    }


def test_a_call_that_never_ended_is_closed() -> None:
    events = streamed([delta(*PIECES, reason="length")])
    assert [event["type"] for event in events[-3:]] == [
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


def test_reasons() -> None:
    assert stop_of("stop", None, called=False) == ("end_turn", None)
    assert stop_of("stop", 2, called=False) == ("end_turn", None), "a stop id"
    assert stop_of("stop", "x", called=False) == ("stop_sequence", "x")
    assert stop_of("stop", None, called=True) == ("tool_use", None), "of a tool named by the client"
    assert stop_of("tool_calls", None, called=True) == ("tool_use", None)
    assert stop_of("length", None, called=True) == ("max_tokens", None)
