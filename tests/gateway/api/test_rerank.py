"""POST /rerank in Jina's and in Cohere's format."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.fakes.gateway_app import error_of
from tests.fakes.whole_system import Whole

DOCUMENTS = ["a", "the baton", "the relay runner hands the baton to the next runner"]


@pytest.mark.row("F18.15")
def test_the_openai_client_gets_a_ranking(scorer: Whole) -> None:
    async def ask() -> None:
        client = openai.AsyncOpenAI(
            api_key="-", base_url="http://localhost", http_client=scorer.client, max_retries=0
        )
        for path in ("/rerank", "/v1/rerank"):
            body: dict[str, Any] = {"query": "who?", "documents": DOCUMENTS}
            answer: Any = await client.post(path, body=body, cast_to=object)
            assert set(answer) == {"id", "model", "usage", "results"}
            results = answer["results"]
            assert sorted(r["index"] for r in results) == [0, 1, 2]
            assert all(r["document"] == {"text": DOCUMENTS[r["index"]]} for r in results)
            found = [r["relevance_score"] for r in results]
            assert found == sorted(found, reverse=True) and len(set(found)) == 3
        with pytest.raises(openai.BadRequestError) as caught:
            await client.post("/rerank", body={"query": "a"}, cast_to=object)
        assert caught.value.param == "documents"

    scorer.run(ask)


def test_cohere_shape(scorer: Whole) -> None:
    body = {"model": scorer.model, "query": "who?", "documents": DOCUMENTS, "top_n": 2}
    answer = scorer.post("/v2/rerank", body).json()
    assert set(answer) == {"id", "results", "meta"}
    assert answer["meta"] == {"api_version": {"version": "2"}}
    assert [set(r) for r in answer["results"]] == [{"index", "relevance_score"}] * 2
    cut = scorer.post("/rerank", body | {"truncate_prompt_tokens": 12}).json()
    assert cut["usage"]["prompt_tokens"] <= 12 * len(DOCUMENTS)
    best = scorer.post("/rerank", body).json()["results"]
    assert [r["index"] for r in best] == [r["index"] for r in answer["results"]]


def test_documents_as_objects_and_left_out(scorer: Whole) -> None:
    objects = [{"text": text} for text in DOCUMENTS]
    body = {"query": "who?", "documents": objects, "return_documents": False}
    found = scorer.post("/rerank", body).json()["results"]
    plain = scorer.post("/rerank", {"query": "who?", "documents": DOCUMENTS}).json()["results"]
    assert [(r["index"], r["relevance_score"]) for r in found] == [
        (r["index"], r["relevance_score"]) for r in plain
    ]
    assert "document" not in found[0]


def test_an_embedder_ranks_too(embedder: Whole) -> None:
    body = {"query": DOCUMENTS[1], "documents": DOCUMENTS}
    found = embedder.post("/rerank", body).json()["results"]
    assert found[0]["index"] == 1 and found[0]["relevance_score"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"query": ""}, "empty_string", "query"),
        ({"query": ...}, "missing_required_parameter", "query"),
        ({"documents": []}, "empty_array", "documents"),
        ({"documents": ["a"] * 100_000}, "array_above_max_length", "documents"),
        ({"documents": ["a"] * 2049}, "array_above_max_length", "documents"),
        ({"documents": [{"title": "a"}]}, "missing_required_parameter", "documents[0].text"),
        ({"documents": "a"}, "invalid_type", "documents"),
        ({"top_n": 0}, "integer_below_min_value", "top_n"),
        ({"top_n": 1.5}, "invalid_type", "top_n"),
    ],
)
def test_bad_input(scorer: Whole, fields: dict[str, Any], code: str, param: str) -> None:
    """E09"""
    body = {"query": "who?", "documents": DOCUMENTS} | fields
    body = {name: value for name, value in body.items() if value is not ...}
    response = scorer.post("/rerank", body)
    error = error_of(response)
    assert (response.status_code, error["code"], error["param"]) == (400, code, param)


def test_more_wanted_than_there_are(scorer: Whole) -> None:
    """E09"""
    response = scorer.post("/rerank", {"query": "a", "documents": DOCUMENTS, "top_n": 9})
    assert response.status_code == 200 and len(response.json()["results"]) == 3
