"""POST /pooling."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.fakes.gateway_app import error_of
from tests.fakes.whole_system import Whole


@pytest.mark.row("F18.16")
def test_the_openai_client_gets_numbers(embedder: Whole, classifier: Whole) -> None:
    for here, width in ((embedder, 48), (classifier, 3)):

        async def ask(here: Whole = here, width: int = width) -> None:
            client = openai.AsyncOpenAI(
                api_key="-", base_url="http://localhost", http_client=here.client, max_retries=0
            )
            body: dict[str, Any] = {"model": here.model, "input": ["a", "the baton"]}
            answer: Any = await client.post("/pooling", body=body, cast_to=object)
            assert answer["object"] == "list" and answer["id"].startswith("pool-")
            assert [(e["index"], e["object"], len(e["data"])) for e in answer["data"]] == [
                (0, "pooling", width),
                (1, "pooling", width),
            ]
            with pytest.raises(openai.BadRequestError) as caught:
                await client.post("/pooling", body={"input": [""]}, cast_to=object)
            assert (caught.value.code, caught.value.param) == ("empty_string", "input[0]")

        here.run(ask)


def test_it_is_the_embedding_of_an_embedder(embedder: Whole) -> None:
    [entry] = embedder.post("/pooling", {"input": "a", "dimensions": 8}).json()["data"]
    assert entry["data"] == embedder.embed("a", dimensions=8).json()["data"][0]["embedding"]


def test_another_models_name(embedder: Whole) -> None:
    response = embedder.post("/pooling", {"model": "other", "input": "a"})
    assert (response.status_code, error_of(response)["code"]) == (404, "model_not_found")
