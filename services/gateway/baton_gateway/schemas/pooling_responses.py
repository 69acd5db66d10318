"""Answers of the endpoints that give vectors and scores, field by field as clients expect them."""

from __future__ import annotations

from typing import Literal

import msgspec

Numbers = list[float] | list[list[float]] | str
"""A vector, one per step, or float32 little-endian in base64."""


class PooledUsage(msgspec.Struct):
    """Tokens in; none come out."""

    prompt_tokens: int
    total_tokens: int


class Embedding(msgspec.Struct):
    """One vector."""

    index: int
    embedding: Numbers
    object: Literal["embedding"] = "embedding"


class Embeddings(msgspec.Struct):
    """Answer of /v1/embeddings."""

    data: list[Embedding]
    model: str
    usage: PooledUsage
    object: Literal["list"] = "list"


class PooledData(msgspec.Struct):
    """What one text came to."""

    index: int
    data: Numbers
    object: Literal["pooling"] = "pooling"


class PooledList(msgspec.Struct):
    """Answer of /pooling."""

    id: str
    created: int
    model: str
    data: list[PooledData]
    usage: PooledUsage
    object: Literal["list"] = "list"


class Classification(msgspec.Struct):
    """The most probable label of one text, and the probabilities of all."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class Classifications(msgspec.Struct):
    """Answer of /classify."""

    id: str
    created: int
    model: str
    data: list[Classification]
    usage: PooledUsage
    object: Literal["list"] = "list"


class Score(msgspec.Struct):
    """How well two texts go together."""

    index: int
    score: float
    object: Literal["score"] = "score"


class Scores(msgspec.Struct):
    """Answer of /score."""

    id: str
    created: int
    model: str
    data: list[Score]
    usage: PooledUsage
    object: Literal["list"] = "list"


class Document(msgspec.Struct):
    """A document as it came."""

    text: str


class Ranked(msgspec.Struct, omit_defaults=True):
    """One document in its place."""

    index: int
    relevance_score: float
    document: Document | None = None


class Ranking(msgspec.Struct):
    """Answer of /rerank in Jina's shape."""

    id: str
    model: str
    usage: PooledUsage
    results: list[Ranked]


class ApiVersion(msgspec.Struct):
    """Which of Cohere's it is."""

    version: str = "2"


class Meta(msgspec.Struct):
    """What Cohere's clients read beside the results."""

    api_version: ApiVersion = msgspec.field(default_factory=ApiVersion)


class CohereRanking(msgspec.Struct):
    """Answer of /v2/rerank in Cohere's shape."""

    id: str
    results: list[Ranked]
    meta: Meta = msgspec.field(default_factory=Meta)
