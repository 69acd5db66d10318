"""POST /score: cross-encoders, and cosines of embeddings."""

from __future__ import annotations

from typing import Any

import numpy as np
import openai
import pytest

from baton_gateway.api.score import cosine
from tests.fakes.gateway_app import Site, error_of
from tests.fakes.gateway_engine import MODEL
from tests.fakes.whole_system import Whole

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def scores(here: Whole, **body: Any) -> list[float]:
    answer = here.post("/score", body).json()
    return [entry["score"] for entry in answer["data"]]


@pytest.mark.row("F18.14")
def test_the_openai_client_gets_scores(scorer: Whole) -> None:
    async def ask() -> None:
        client = openai.AsyncOpenAI(
            api_key="-", base_url="http://localhost", http_client=scorer.client, max_retries=0
        )
        for path in ("/score", "/v1/score"):
            body = {"model": scorer.model, "text_1": "who?", "text_2": ["a", "the baton"]}
            answer: Any = await client.post(path, body=body, cast_to=object)
            assert answer["object"] == "list" and answer["id"].startswith("score-")
            assert [entry["object"] for entry in answer["data"]] == ["score"] * 2
            assert all(0 < entry["score"] < 1 for entry in answer["data"])
            assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] > 0
        with pytest.raises(openai.BadRequestError) as caught:
            await client.post("/score", body={"text_1": "a"}, cast_to=object)
        assert caught.value.code == "missing_required_parameter"
        assert caught.value.param == "text_2"

    scorer.run(ask)


def test_one_against_many_and_pairwise(scorer: Whole) -> None:
    one = scores(scorer, text_1="a", text_2=["b", "c"])
    pairs = scores(scorer, text_1=["a", "a"], text_2=["b", "c"])
    assert one == pairs and one[0] != one[1]
    assert scores(scorer, queries="a", documents=["b", "c"]) == one
    raw = scores(scorer, text_1="a", text_2="b", use_activation=False)
    assert 1 / (1 + np.exp(-raw[0])) == pytest.approx(one[0], abs=1e-5)


def test_text_that_looks_like_a_separator_is_text(scorer: Whole) -> None:
    """Nobody who writes a document moves the border between it and the query."""
    plain, posing = scores(scorer, text_1="a", text_2=["b c", "b</s>c"])
    joined = scorer.post("/tokenize", {"prompt": "b</s>c"}).json()["count"]
    usage = [
        scorer.post("/score", {"text_1": "a", "text_2": text}).json()["usage"]["prompt_tokens"]
        for text in ("b</s>c", "b c")
    ]
    assert plain != posing and usage[0] > usage[1] and joined < usage[0]


def test_an_embedder_scores_by_cosine(embedder: Whole) -> None:
    texts = ["the baton", "a", "the baton"]
    found = scores(embedder, text_1="the baton", text_2=texts)
    vectors = [e["embedding"] for e in embedder.embed(texts).json()["data"]]
    expected = [float(np.dot(vectors[0], vector)) for vector in vectors]
    assert found == pytest.approx(expected, abs=1e-5) and found[0] == pytest.approx(1.0)


def test_cosine_of_nothing() -> None:
    zero, one = np.zeros(2, np.float32), np.ones(2, np.float32)
    assert cosine(zero, one) == 0.0
    assert cosine(one, -3 * one) == pytest.approx(-1.0)


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"text_1": "a", "text_2": []}, "empty_array", "text_2"),
        ({"text_1": "", "text_2": "b"}, "empty_string", "text_1"),
        ({"text_1": ["a", "b"], "text_2": ["c"] * 3}, "invalid_value", "text_2"),
        ({"text_1": "a", "text_2": [5]}, "invalid_type", "text_2[0]"),
        (
            {"text_1": "a", "text_2": ["b", {"content": [IMAGE]}]},
            "unsupported_value",
            "text_2[1].content[0].image_url",
        ),
        ({"text_1": "a", "text_2": ["b"] * 2049}, "array_above_max_length", "text_2"),
        ({"text_1": "a", "text_2": ["b " * 500]}, "context_length_exceeded", "text_2"),
        ({"text_1": "a " * 500_000, "text_2": "b"}, "context_length_exceeded", "text_2"),
    ],
)
def test_bad_input(scorer: Whole, body: dict[str, Any], code: str, param: str) -> None:
    response = scorer.post("/score", body)
    error = error_of(response)
    assert (response.status_code, error["code"], error["param"]) == (400, code, param)
    assert scores(scorer, text_1="a", text_2="b")


def test_models_that_cannot_score(shared_site: Site, classifier: Whole) -> None:
    for here, model in ((shared_site, MODEL), (classifier, classifier.model)):
        error = error_of(here.post("/score", {"model": model, "text_1": "a", "text_2": "b"}))
        assert (error["code"], error["param"]) == ("unsupported_value", "model")
