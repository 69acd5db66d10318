"""Pooling requests; their rejections are tested in tests/gateway/api."""

from __future__ import annotations

from typing import Any

import pytest

from baton.errors import InvalidRequest
from baton_gateway.http.body import build
from baton_gateway.schemas.pooling import (
    MAX_TEXTS,
    EmbeddingRequest,
    PoolingRequest,
    RerankRequest,
    ScoreRequest,
)


def embedding(**fields: Any) -> EmbeddingRequest:
    return build({"model": "m", "input": "a"} | fields, EmbeddingRequest)


@pytest.mark.parametrize(
    ("given", "texts"),
    [
        ("a", ("a",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ((1, 2),)),
        ([[1], [2, 3]], ((1,), (2, 3))),
    ],
)
def test_input_is_always_several(given: object, texts: tuple[object, ...]) -> None:
    assert embedding(input=given).input == texts


def test_messages_in_place_of_input() -> None:
    messages = [{"role": "user", "content": "a"}]
    for kind in (EmbeddingRequest, PoolingRequest):
        body = build({"model": "m", "messages": messages}, kind)
        assert (body.messages, body.input, body.param) == (messages, None, "messages")
        for fields, words in (({}, "Missing"), ({"input": "a", "messages": messages}, "not both")):
            with pytest.raises(InvalidRequest, match=words) as caught:
                build({"model": "m"} | fields, kind)
            assert caught.value.param == "input"


@pytest.mark.parametrize(
    ("fields", "raw"),
    [
        ({}, False),
        ({"normalize": False}, True),
        ({"use_activation": False}, True),
        ({"activation": False}, True),
        ({"activation": False, "use_activation": True}, False),
    ],
)
def test_raw(fields: dict[str, bool], raw: bool) -> None:
    assert embedding(**fields).raw is raw


def test_the_model_may_be_left_out_where_there_is_one() -> None:
    assert build({"input": "a"}, PoolingRequest).model is None
    with pytest.raises(InvalidRequest) as caught:
        build({"input": "a"}, EmbeddingRequest)
    assert caught.value.param == "model"


def test_pairs() -> None:
    one = build({"text_1": "a", "text_2": ["b", "c"]}, ScoreRequest)
    assert one.pairs == (("a", "b"), ("a", "c"))
    both = build({"text_1": ["a", "d"], "text_2": ["b", "c"]}, ScoreRequest)
    assert both.pairs == (("a", "b"), ("d", "c"))
    named = build({"queries": "a", "documents": "b"}, ScoreRequest)
    assert named.pairs == (("a", "b"),)


def test_documents() -> None:
    body = build({"query": "q", "documents": ["a", {"text": "b"}]}, RerankRequest)
    assert body.documents == ("a", "b") and body.top_n is None


def test_a_long_list_is_refused_before_it_is_looked_at() -> None:
    with pytest.raises(InvalidRequest) as caught:
        embedding(input=[None] * (MAX_TEXTS + 1) + ["a"])
    assert caught.value.code in ("array_above_max_length", "invalid_type")
    with pytest.raises(InvalidRequest) as caught:
        embedding(input=["a"] * (MAX_TEXTS + 1))
    assert caught.value.code == "array_above_max_length"
