"""POST /classify."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.fakes.gateway_app import error_of
from tests.fakes.whole_system import Whole


@pytest.mark.row("F18.17")
def test_the_openai_client_gets_labels(classifier: Whole) -> None:
    async def ask() -> None:
        client = openai.AsyncOpenAI(
            api_key="-", base_url="http://localhost", http_client=classifier.client, max_retries=0
        )
        body: dict[str, Any] = {"model": classifier.model, "input": ["a", "the baton"]}
        answer: Any = await client.post("/classify", body=body, cast_to=object)
        assert answer["object"] == "list" and answer["id"].startswith("classify-")
        for index, entry in enumerate(answer["data"]):
            probs = entry["probs"]
            assert (entry["index"], entry["num_classes"], len(probs)) == (index, 3, 3)
            assert sum(probs) == pytest.approx(1.0, abs=1e-5)
            assert entry["label"] == ("calm", "glad", "sad")[probs.index(max(probs))]
        with pytest.raises(openai.BadRequestError) as caught:
            await client.post("/classify", body={"input": 5}, cast_to=object)
        assert (caught.value.code, caught.value.param) == ("invalid_type", "input")

    classifier.run(ask)


def test_raw_scores(classifier: Whole) -> None:
    raw = classifier.post("/classify", {"input": "a", "activation": False}).json()["data"][0]
    assert sum(raw["probs"]) != pytest.approx(1.0, abs=1e-2)


def test_a_scorer_has_one_label(scorer: Whole) -> None:
    [entry] = scorer.post("/classify", {"input": "a"}).json()["data"]
    assert (entry["label"], entry["num_classes"]) == ("LABEL_0", 1) and 0 < entry["probs"][0] < 1


def test_an_embedder_does_not_classify(embedder: Whole) -> None:
    error = error_of(embedder.post("/classify", {"input": "a"}))
    assert (error["code"], error["param"]) == ("unsupported_value", "model")
    assert "/v1/embeddings" in error["message"]
