"""Responses of the embedding, pooling, classification, scoring and reranking endpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

Numbers = Sequence[float | Sequence[float]] | str
"""A vector, a list of vectors (one per step), or float32 little-endian in base64."""


class PooledUsage(msgspec.Struct):
    """Token counts; nothing is generated."""

    prompt_tokens: int
    total_tokens: int


class Embedding(msgspec.Struct):
    """One vector."""

    index: int
    embedding: Numbers
    object: Literal["embedding"] = "embedding"


class Embeddings(msgspec.Struct):
    """Response of /v1/embeddings."""

    data: list[Embedding]
    model: str
    usage: PooledUsage
    object: Literal["list"] = "list"


class PooledData(msgspec.Struct):
    """Output for one text."""

    index: int
    data: Numbers
    object: Literal["pooling"] = "pooling"


class PooledList(msgspec.Struct):
    """Response of /pooling."""

    id: str
    created: int
    model: str
    data: list[PooledData]
    usage: PooledUsage
    object: Literal["list"] = "list"


class Classification(msgspec.Struct):
    """Most probable label of one text, with the probabilities of all labels."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class Classifications(msgspec.Struct):
    """Response of /classify."""

    id: str
    created: int
    model: str
    data: list[Classification]
    usage: PooledUsage
    object: Literal["list"] = "list"


class Score(msgspec.Struct):
    """Similarity or relevance score of one pair."""

    index: int
    score: float
    object: Literal["score"] = "score"


class Scores(msgspec.Struct):
    """Response of /score."""

    id: str
    created: int
    model: str
    data: list[Score]
    usage: PooledUsage
    object: Literal["list"] = "list"


class Document(msgspec.Struct, omit_defaults=True):
    """A document as sent by the client."""

    text: str | None = None
    multi_modal: Sequence[Mapping[str, Any]] | None = None
    """Content parts, of a document that is no string."""


class Ranked(msgspec.Struct, omit_defaults=True):
    """One document of the ranking."""

    index: int
    relevance_score: float
    document: Document | None = None


class Ranking(msgspec.Struct):
    """Response of /rerank in Jina's format."""

    id: str
    model: str
    usage: PooledUsage
    results: list[Ranked]


class ApiVersion(msgspec.Struct):
    """Cohere's API version."""

    version: str = "2"


class Meta(msgspec.Struct):
    """Metadata that Cohere's clients read."""

    api_version: ApiVersion = msgspec.field(default_factory=ApiVersion)


class CohereRanking(msgspec.Struct):
    """Response of /v2/rerank in Cohere's format."""

    id: str
    results: list[Ranked]
    meta: Meta = msgspec.field(default_factory=Meta)
