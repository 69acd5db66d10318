"""Chat objects: roles, pieces, the place of tokens and finish reasons."""

from __future__ import annotations

from array import array
from typing import Any

from msgspec import UNSET

from baton.output_parsing import Content, Reasoning
from baton.protocol.packed_tokens import PackedTokens
from baton_gateway.generation.choice import Choice
from baton_gateway.generation.logprobs import Vocabulary
from baton_gateway.generation.output import OutputDelta, Started
from baton_gateway.pieces import plain
from baton_gateway.schemas.chat import ChatRequest
from baton_gateway.streaming.chat_writer import ChatWriter
from baton_gateway.streaming.head import Head

STARTED = Started((PackedTokens.of([1, 2]),))


def _writer(**fields: Any) -> ChatWriter:
    messages = [{"role": "user", "content": "x"}]
    body = ChatRequest.model_validate({"model": "m", "messages": messages} | fields)
    return ChatWriter(body, Head("x", 1, "m"), Vocabulary(()))


def test_each_choice_opens_with_its_role_and_the_first_has_the_prompt() -> None:
    first, second = _writer(n=2, return_token_ids=True).opening(STARTED)
    assert [c.choices[0].delta.role for c in (first, second)] == ["assistant"] * 2
    assert (first.prompt_token_ids, second.prompt_token_ids) == ([1, 2], UNSET)


def test_a_chunk_per_piece() -> None:
    """The tokens are in the first chunk, the finish reason in the last."""
    part = Choice(pieces=[Content("a"), Content("b")], tokens=array("i", [5, 6]), reason="stop")
    writer = _writer(return_token_ids=True)
    chunks = [c.choices[0] for c in writer.chunks(STARTED, 0, part, first=False)]
    assert [(c.delta.content, c.token_ids, c.finish_reason) for c in chunks] == [
        ("a", [5, 6], None),
        ("b", [], "stop"),
    ]


def test_thinking_is_left_out_where_it_is_not_wanted() -> None:
    part = Choice(pieces=[Reasoning("r"), Content("a")], tokens=array("i", [5]), reason="stop")
    writer = _writer(include_reasoning=False)
    [chunk] = writer.chunks(STARTED, 0, part, first=False)
    assert (chunk.choices[0].delta.content, chunk.choices[0].finish_reason) == ("a", "stop")
    message = writer.response(STARTED, [part]).choices[0].message
    assert (message.content, message.reasoning) == ("a", UNSET)


def test_only_a_single_piece_is_a_text() -> None:
    writer = _writer()
    for pieces, text in (
        (plain(""), ""),
        (plain("a"), "a"),
        ((Content("a"), Content("b")), None),
    ):
        assert writer.text_of(OutputDelta(0, "ab", array("i"), pieces=pieces)) == text


def test_whole() -> None:
    part = Choice(pieces=[Content("a"), Content("b")], tokens=array("i", [5, 6]), reason="stop")
    found = _writer().response(STARTED, [part])
    assert (found.choices[0].message.content, found.usage.total_tokens) == ("ab", 4)
    assert found.choices[0].logprobs is None and found.prompt_token_ids is UNSET
