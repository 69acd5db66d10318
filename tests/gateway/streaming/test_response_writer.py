"""Whole responses."""

from __future__ import annotations

from array import array

from baton.output_parsing import CallEnd, CallStart, Content, Reasoning
from baton.protocol.packed_tokens import PackedTokens
from baton_gateway.generation.choice import Choice
from baton_gateway.generation.logprobs import Vocabulary
from baton_gateway.generation.output import OutputDelta, Started
from baton_gateway.http.body import build
from baton_gateway.schemas.responses.request import ResponsesRequest
from baton_gateway.streaming.head import Head
from baton_gateway.streaming.response_writer import ResponseWriter


def test_a_choice_is_what_its_stream_would_have_made() -> None:
    choice = Choice()
    parts = [Reasoning("h"), Content("a"), Content("b"), CallStart(0, "call_1", "f"), CallEnd(0)]
    for piece in parts:
        choice.add(OutputDelta(0, "x", array("i", [1]), pieces=(piece,), reasoning_tokens=1))
    choice.add(OutputDelta(0, "", array("i", [2]), reason="stop", cached=1))
    request = build({"model": "m", "input": "hi", "metadata": {"a": "b"}}, ResponsesRequest)
    chat = request.chat([], request.input)
    writer = ResponseWriter(chat, Head("resp_1", 5, "m"), Vocabulary(()))
    response = writer.response(Started((PackedTokens.of([1, 2, 3]),)), [choice])
    assert [type(item).__name__ for item in response.output] == [
        "ReasoningItem",
        "MessageItem",
        "FunctionCallItem",
    ]
    assert response.usage is not None and response.usage.output_tokens == 6
    assert response.usage.output_tokens_details.reasoning_tokens == 5
    assert (response.status, response.created_at, response.metadata) == ("completed", 5, {"a": "b"})
