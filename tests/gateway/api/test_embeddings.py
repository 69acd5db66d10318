"""POST /v1/embeddings: inputs, responses, rejections."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import openai
import pytest

from tests.fakes.gateway_app import Site, error_of
from tests.fakes.gateway_engine import MODEL
from tests.fakes.whole_system import Whole

HUGE = 10**9


@pytest.mark.row("F18.03")
def test_the_openai_client_gets_its_vectors(embedder: Whole) -> None:
    """It asks for base64 and decodes it; a bad request is its BadRequestError."""

    async def ask() -> None:
        client = openai.AsyncOpenAI(
            api_key="-", base_url="http://localhost/v1", http_client=embedder.client, max_retries=0
        )
        answer = await client.embeddings.create(model=embedder.model, input=["a", "the baton"])
        assert [item.index for item in answer.data] == [0, 1]
        assert answer.model == embedder.model and answer.object == "list"
        plain = await client.embeddings.create(
            model=embedder.model, input="the baton", encoding_format="float"
        )
        assert answer.data[1].embedding == pytest.approx(plain.data[0].embedding, abs=1e-6)
        assert np.linalg.norm(plain.data[0].embedding) == pytest.approx(1.0, abs=1e-5)
        assert answer.usage.prompt_tokens == answer.usage.total_tokens > 4
        with pytest.raises(openai.BadRequestError) as caught:
            await client.embeddings.create(model=embedder.model, input=[])
        assert caught.value.code == "empty_array" and caught.value.param == "input"

    embedder.run(ask)


def test_text_and_ids_are_the_same(embedder: Whole) -> None:
    ids = embedder.post("/tokenize", {"prompt": "the baton"}).json()["tokens"]
    given = ["the baton", ["the baton"], ids, [ids]]
    vectors = [embedder.embed(one).json()["data"][0]["embedding"] for one in given]
    assert all(vector == vectors[0] for vector in vectors)
    bare = embedder.embed("the baton", add_special_tokens=False).json()["data"][0]["embedding"]
    assert bare == embedder.embed(ids[1:-1]).json()["data"][0]["embedding"]
    several = embedder.embed([ids, ids[:2]]).json()
    assert len(several["data"]) == 2 and several["usage"]["prompt_tokens"] == len(ids) + 2


def test_the_beginning_of_a_long_text_is_embedded(embedder: Whole) -> None:
    """With the tokens that the tokenizer puts around it."""
    long = "the baton " * 40
    for keep, length in ((9, 9), (-1, 40)):
        ids = embedder.post("/tokenize", {"prompt": long}).json()["tokens"]
        cut = [*ids[: length - 1], ids[-1]]
        answer = embedder.embed(long, truncate_prompt_tokens=keep).json()
        assert answer["usage"]["prompt_tokens"] == length
        assert answer["data"][0]["embedding"] == embedder.embed(cut).json()["data"][0]["embedding"]
        of_ids = embedder.embed(ids, truncate_prompt_tokens=keep).json()["data"][0]["embedding"]
        assert of_ids == embedder.embed(ids[:length]).json()["data"][0]["embedding"]
        chatted = {"messages": [{"role": "user", "content": long}], "truncate_prompt_tokens": keep}
        answer = embedder.post("/v1/embeddings", {"model": embedder.model} | chatted).json()
        of_text = embedder.embed(ids[1 : length + 1]).json()["data"][0]["embedding"]
        assert answer["data"][0]["embedding"] == of_text, "its template adds no special tokens"
    whole = embedder.embed("a", truncate_prompt_tokens=9).json()["data"][0]["embedding"]
    assert whole == embedder.embed("a").json()["data"][0]["embedding"]


def test_base64_holds_the_same_numbers(embedder: Whole) -> None:
    text = embedder.embed("a", encoding_format="base64").json()["data"][0]["embedding"]
    numbers = np.frombuffer(base64.b64decode(text), "<f4")
    assert numbers.tolist() == embedder.embed("a").json()["data"][0]["embedding"]


def test_dimensions_are_the_first_ones_normalised_anew(embedder: Whole) -> None:
    whole = np.array(embedder.embed("the baton").json()["data"][0]["embedding"])
    short = np.array(embedder.embed("the baton", dimensions=8).json()["data"][0]["embedding"])
    assert short == pytest.approx(whole[:8] / np.linalg.norm(whole[:8]), abs=1e-5)
    raw = np.array(embedder.embed("the baton", normalize=False).json()["data"][0]["embedding"])
    assert raw / np.linalg.norm(raw) == pytest.approx(whole, abs=1e-5)
    assert np.linalg.norm(raw) != pytest.approx(1.0, abs=1e-2)


def test_the_model_is_listed_with_the_length_of_its_texts(embedder: Whole) -> None:
    [entry] = embedder.get("/v1/models").json()["data"]
    assert (entry["id"], entry["max_model_len"]) == (embedder.model, 40)


ROWS: list[tuple[str, dict[str, Any], str, str]] = [
    ("E01", {"input": ...}, "missing_required_parameter", "input"),
    ("E01", {"input": None}, "invalid_type", "input"),
    ("E01", {"input": {}}, "invalid_type", "input"),
    ("E01", {"input": []}, "empty_array", "input"),
    ("E01", {"input": [[]]}, "empty_array", "input[0]"),
    ("E01", {"input": ""}, "empty_string", "input"),
    ("E01", {"input": ["a", ""]}, "empty_string", "input[1]"),
    ("E02", {"input": ["a"] * 2049}, "array_above_max_length", "input"),
    ("E02", {"input": ["a"] * 65_537}, "array_above_max_length", "input"),
    ("E03", {"input": ["a", "the baton " * 40]}, "context_length_exceeded", "input"),
    ("E03", {"input": [5] * 41}, "context_length_exceeded", "input"),
    ("E03", {"input": [5] * 1_000_000}, "context_length_exceeded", "input"),
    ("E04", {"input": ["a", [5]]}, "invalid_type", "input[1]"),
    ("E04", {"input": [5, "a"]}, "invalid_type", "input[1]"),
    ("E04", {"input": [[5], ["a"]]}, "invalid_type", "input[1][0]"),
    ("E05", {"encoding_format": "hex"}, "invalid_value", "encoding_format"),
    ("E06", {"input": [-1]}, "invalid_value", "input[0]"),
    ("E06", {"input": [5, 320]}, "invalid_value", "input[1]"),
    ("E06", {"input": [[5], [2**63]]}, "invalid_value", "input[1][0]"),
    ("E07", {"dimensions": 0}, "integer_below_min_value", "dimensions"),
    ("E07", {"dimensions": -1}, "integer_below_min_value", "dimensions"),
    ("E07", {"dimensions": HUGE}, "integer_above_max_value", "dimensions"),
    ("E07", {"dimensions": 1.5}, "invalid_type", "dimensions"),
    ("--", {"model": ...}, "missing_required_parameter", "model"),
    ("--", {"truncate_prompt_tokens": 0}, "invalid_value", "truncate_prompt_tokens"),
    ("--", {"truncate_prompt_tokens": 41}, "invalid_value", "truncate_prompt_tokens"),
    ("--", {"truncate_prompt_tokens": 2}, "invalid_value", "input"),
    ("--", {"prompt_embeds": "x"}, "field_not_allowed", "prompt_embeds"),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}-{row[2]}-{row[3]}")
def test_bad_input(embedder: Whole, row: tuple[str, dict[str, Any], str, str]) -> None:
    _, fields, code, param = row
    body = {"model": embedder.model, "input": "a"} | fields
    body = {name: value for name, value in body.items() if value is not ...}
    response = embedder.post("/v1/embeddings", body)
    error = error_of(response)
    assert (response.status_code, error["code"], error["param"]) == (400, code, param)
    assert error["type"] == "invalid_request_error"
    assert embedder.embed("a").status_code == 200


def test_all_texts_together_have_a_bound(embedder: Whole) -> None:
    """E03"""
    config = embedder.engine.config
    embedder.engine.config = config.model_copy(update={"max_pooling_tokens": 20})
    try:
        error = error_of(embedder.embed(["the baton"] * 20))
        assert (error["code"], error["param"]) == ("context_length_exceeded", "input")
        assert "several requests" in error["message"]
    finally:
        embedder.engine.config = config


def test_dimensions_of_a_model_that_has_none(classifier: Whole) -> None:
    """E07"""
    error = error_of(classifier.post("/pooling", {"input": "a", "dimensions": 2}))
    assert (error["code"], error["param"]) == ("unsupported_parameter", "dimensions")


def test_a_model_that_generates_makes_no_vectors(shared_site: Site) -> None:
    """E08"""
    response = shared_site.post("/v1/embeddings", {"model": MODEL, "input": "a"})
    error = error_of(response)
    assert (response.status_code, error["code"], error["param"]) == (
        400,
        "unsupported_value",
        "model",
    )
    assert "/v1/chat/completions" in error["message"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_model_that_embeds_generates_no_text(embedder: Whole, path: str) -> None:
    given = {"prompt": "a"} if path == "/v1/completions" else {"messages": [_USER]}
    response = embedder.post(path, {"model": embedder.model} | given)
    error = error_of(response)
    assert (response.status_code, error["code"]) == (400, "unsupported_value")
    assert "/v1/embeddings" in error["message"]


_USER = {"role": "user", "content": "a"}
