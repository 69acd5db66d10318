"""Responses with vectors and scores, field by field."""

from __future__ import annotations

import msgspec

from baton_gateway.schemas.pooling_responses import (
    CohereRanking,
    Document,
    Embedding,
    Embeddings,
    PooledUsage,
    Ranked,
)


def test_embeddings_are_what_openai_documents() -> None:
    answer = Embeddings([Embedding(0, [0.5, 1.0])], "m", PooledUsage(3, 3))
    assert msgspec.json.decode(msgspec.json.encode(answer)) == {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": [0.5, 1.0]}],
        "model": "m",
        "usage": {"prompt_tokens": 3, "total_tokens": 3},
    }


def test_a_document_is_absent_rather_than_null() -> None:
    with_text = msgspec.to_builtins(Ranked(1, 0.5, Document("a")))
    assert with_text == {"index": 1, "relevance_score": 0.5, "document": {"text": "a"}}
    answer = msgspec.to_builtins(CohereRanking("rerank-1", [Ranked(1, 0.5)]))
    assert answer["results"] == [{"index": 1, "relevance_score": 0.5}]
