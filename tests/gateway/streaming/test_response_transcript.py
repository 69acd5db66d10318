"""Events of streamed responses."""

from __future__ import annotations

import json
from array import array
from typing import Any

from baton.errors import ServerFault
from baton.output_parsing import Arguments, CallEnd, CallStart, Content, Piece, Reasoning
from baton.protocol.packed_tokens import PackedTokens
from baton_gateway.generation.logprobs import Vocabulary
from baton_gateway.generation.output import OutputDelta, Started, TokenLogprob
from baton_gateway.http.body import build
from baton_gateway.schemas.responses.request import ResponsesRequest
from baton_gateway.streaming.head import Head
from baton_gateway.streaming.response_transcript import ResponseTranscript
from tests.support.gateway.response_events import Event, response_of

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
    Arguments(2, '{"input": '),
    Arguments(2, '"x"}'),
    CallEnd(2),
    Content("b"),
]
STARTED = Started((PackedTokens.of([1, 2, 3]),))


def transcript(**fields: Any) -> ResponseTranscript:
    tools = [{"type": "function", "name": "f"}, {"type": "custom", "name": "g"}]
    body = {"model": "m", "input": "hi", "tools": tools} | fields
    words = Vocabulary(tuple(b"t%d" % i for i in range(9)))
    request = build(body, ResponsesRequest)
    return ResponseTranscript(request.chat([], request.input), Head("resp_1", 0, "m"), words)


def streamed(deltas: list[OutputDelta], **fields: Any) -> list[Event]:
    one = transcript(**fields)
    payloads = [*one.opening(STARTED)]
    for delta in deltas:
        payloads += one.add(delta)
    return [json.loads(payload) for payload in [*payloads, *one.closing()]]


def delta(*pieces: Piece, reason: str | None = None, **fields: Any) -> OutputDelta:
    return OutputDelta(0, "", array("i", [7]), pieces=pieces, reason=reason, cached=2, **fields)


def test_one_item_is_open_at_a_time_however_it_ends() -> None:
    """The checker asserts it."""
    for count in range(len(PIECES)):
        one = response_of(streamed([delta(*PIECES[:count], reason="length")]))
        parts = [delta(piece) for piece in PIECES[:count]] + [delta(reason="length")]
        other = response_of(streamed(parts))
        assert one["output"] == other["output"] and other["usage"]["output_tokens"] == count + 1
        assert one["incomplete_details"] == {"reason": "max_output_tokens"}
        assert {item["status"] for item in one["output"][:-1]} <= {"completed"}
        ended = count and isinstance(PIECES[count - 1], CallEnd)
        assert one["output"][-1]["status"] == ("completed" if ended else "incomplete")


def test_items_are_those_of_the_pieces() -> None:
    response = response_of(streamed([delta(*PIECES, reason="stop")]))
    assert [item["type"] for item in response["output"]] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
        "reasoning",
        "custom_tool_call",
        "message",
    ]
    assert len({item["id"] for item in response["output"]}) == 7
    thought, _, call, bare, _, custom, _ = response["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert (call["call_id"], call["arguments"], bare["arguments"]) == ("call_1", "{}", "{}")
    assert custom["input"] == "x"
    assert response["status"] == "completed" and response["completed_at"] > 0
    assert response["usage"] == {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
        "output_tokens": 1,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 4,
    }


def test_an_answer_without_text_is_an_empty_message() -> None:
    [message] = response_of(streamed([delta(reason="stop")]))["output"]
    assert message["content"] == [
        {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    ]


def test_logprobs_are_those_of_the_answer_and_of_no_thinking() -> None:
    def scored(token: int) -> tuple[TokenLogprob, ...]:
        return (TokenLogprob(token, -0.5, 1, ((token, -0.5), (8, -1.5))),)

    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    parts = [
        delta(Reasoning("h"), logprobs=scored(1), reasoning_tokens=1),
        delta(logprobs=scored(2)),
        delta(Content("ab"), logprobs=scored(3)),
        delta(Content("c"), logprobs=scored(4), reason="stop"),
    ]
    [_, message] = response_of(streamed(parts, **fields))["output"]
    found = message["content"][0]["logprobs"]
    assert [one["token"] for one in found] == ["t2", "t3", "t4"]
    assert [len(one["top_logprobs"]) for one in found] == [1, 1, 1]


def test_a_failure_is_the_last_event() -> None:
    one = transcript()
    payloads = [*one.opening(STARTED), *one.add(delta(Content("a")))]
    payloads.append(one.failed(ServerFault("It broke.")))
    response = response_of([json.loads(payload) for payload in payloads])
    assert response["status"] == "failed" and response["output"][0]["status"] == "incomplete"
    assert response["error"] == {"code": "server_error", "message": "It broke."}
