"""POST /v2/embed in Cohere's format."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import numpy as np
import pytest

from tests.fakes.gateway_app import error_of
from tests.fakes.whole_system import Whole, whole
from tests.support import tiny_encoders

LONG = "the baton " * 40
PATH = "/v2/embed"


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    """48 numbers, texts of at most 40 tokens, a prompt for queries."""
    folder = tmp_path_factory.mktemp("prompted")
    tiny_encoders.save(folder, "BertModel")
    tiny_encoders.save_sentence_files(folder, max_length=40)
    tiny_encoders.rewrite(folder, {}, is_matryoshka=True)
    prompts = json.dumps({"prompts": {"query": "the ", "document": ""}})
    (folder / "config_sentence_transformers.json").write_text(prompts)
    with whole(folder) as here:
        yield here


def test_vectors_come_in_every_type_that_was_asked_for(embedder: Whole) -> None:
    types = ["float", "base64", "binary", "ubinary"]
    body = {"model": embedder.model, "texts": ["a", LONG], "embedding_types": types}
    answer = embedder.post(PATH, body | {"input_type": "search_document"}).json()
    assert answer["response_type"] == "embeddings_by_type" and answer["texts"] == ["a", LONG]
    ids = embedder.post("/tokenize", {"prompt": "a"}).json()["tokens"]
    assert answer["meta"]["billed_units"] == {"input_tokens": len(ids) + 40}
    expected = embedder.embed(["a", LONG], truncate_prompt_tokens=-1).json()["data"]
    found = answer["embeddings"]
    for i, vector in enumerate(item["embedding"] for item in expected):
        assert found["float"][i] == vector
        numbers = np.frombuffer(base64.b64decode(found["base64"][i]), "<f4")
        assert numbers.tolist() == vector
        bits = np.unpackbits(np.array(found["ubinary"][i], np.uint8))
        assert bits.tolist() == [number >= 0 for number in vector]
        assert found["binary"][i] == [byte - 128 for byte in found["ubinary"][i]]


def test_the_model_reads_the_prompt_of_the_task(embedder: Whole) -> None:
    body = {"inputs": [{"content": [{"type": "text", "text": "baton"}]}], "output_dimension": 8}
    answer = embedder.post(PATH, body | {"input_type": "search_query"}).json()
    expected = embedder.embed("the baton", dimensions=8).json()["data"][0]["embedding"]
    assert answer["embeddings"] == {"float": [expected]}
    plain = embedder.post(PATH, body | {"input_type": "clustering"}).json()
    assert plain["embeddings"]["float"][0] != expected


def test_refusals_name_the_field(embedder: Whole) -> None:
    rows = [
        ({}, "texts"),
        ({"texts": []}, "texts"),
        ({"texts": ["a", ""]}, "texts[1]"),
        ({"texts": ["a"], "images": ["data:,"]}, "images"),
        ({"images": ["\u00e9"]}, "images[0]"),
        ({"images": ["data:image/png;base64,AAAA"]}, "images[0]"),
        ({"texts": ["a"], "embedding_types": ["int8"]}, "embedding_types[0]"),
        ({"texts": ["a"], "embedding_types": []}, "embedding_types"),
        ({"texts": ["a"], "embedding_types": ["binary"], "output_dimension": 9}, "embedding_types"),
        ({"texts": ["a"], "output_dimension": 49}, "output_dimension"),
        ({"texts": ["a"], "input_type": "query"}, "input_type"),
        ({"texts": [LONG], "truncate": "NONE"}, "texts"),
        ({"texts": ["a"], "truncate": "START"}, "truncate"),
        ({"texts": ["a"], "truncate": "NONE", "max_tokens": 9}, "max_tokens"),
    ]
    for body, param in rows:
        assert error_of(embedder.post(PATH, body))["param"] == param, body
