"""The transcript of a stream counts tokens, and holds back chunks without content."""

from __future__ import annotations

import json
from array import array
from typing import Any

import pytest

from baton.protocol.packed_tokens import PackedTokens
from baton_gateway.generation.logprobs import Vocabulary
from baton_gateway.generation.output import OutputDelta, Started
from baton_gateway.pieces import plain
from baton_gateway.schemas.chat import ChatRequest
from baton_gateway.streaming.chat_writer import ChatWriter
from baton_gateway.streaming.chunk_transcript import ChunkTranscript, count
from baton_gateway.streaming.head import Head

MESSAGES = [{"role": "user", "content": "x"}]
STARTED = Started((PackedTokens.of([1, 2, 3]),))


def _transcript(**fields: Any) -> ChunkTranscript:
    body = ChatRequest.model_validate({"model": "m", "messages": MESSAGES, "stream": True} | fields)
    return ChatWriter(body, Head("x", 1, "m"), Vocabulary(())).transcript()


def _delta(text: str, *tokens: int, reason: str | None = None) -> OutputDelta:
    return OutputDelta(
        0, text, array("i", tokens), (1,) * len(tokens), reason=reason, pieces=plain(text), cached=2
    )


def _choices(payloads: Any) -> list[dict[str, Any]]:
    return [choice for payload in payloads for choice in json.loads(payload)["choices"]]


@pytest.mark.parametrize(("ids", "chunks"), [(False, []), (True, [("", [6])])])
def test_a_delta_without_text_is_sent_only_for_its_tokens(ids: bool, chunks: list[Any]) -> None:
    transcript = _transcript(return_token_ids=ids)
    list(transcript.opening(STARTED))
    for text in ("a", "b"):
        assert [c["delta"] for c in _choices(transcript.add(_delta(text, 5)))] == [
            {"content": text}
        ]
        found = _choices(transcript.add(_delta("", 6)))
        assert [(c["delta"]["content"], c["token_ids"]) for c in found] == chunks


def test_text_and_finish_reason_are_one_chunk() -> None:
    transcript = _transcript()
    list(transcript.opening(STARTED))
    (last,) = _choices(transcript.add(_delta("a", 5, reason="stop")))
    assert (last["delta"], last["finish_reason"]) == ({"content": "a"}, "stop")
    assert list(transcript.closing()) == []


def test_the_usage_counts_every_delta() -> None:
    transcript = _transcript(stream_options={"include_usage": True})
    list(transcript.opening(STARTED))
    for delta in (_delta("a", 5), _delta("", 6, 7), _delta("", 8, reason="length")):
        list(transcript.add(delta))
    (usage,) = transcript.closing()
    assert json.loads(usage)["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 2},
    }


def test_a_prompt_counts_once_for_all_of_its_choices() -> None:
    started = Started((PackedTokens.of([1, 2]), PackedTokens.of([3])))
    usage = count(started, 9, [1, 9, 0, 9])
    assert (usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens) == (3, 1)
