"""Code common to the pooling endpoints."""

from __future__ import annotations

import base64

import numpy as np
import pytest

from baton.errors import InvalidRequest
from baton.protocol import PoolingInfo
from baton_gateway.api.pooling_common import check_dimensions, prompts_of, written
from baton_gateway.generation.request import TextPrompt
from tests.fakes.gateway_app import Site, error_of
from tests.fakes.gateway_engine import MODEL
from tests.fakes.whole_system import Whole

NUMBERS = np.array([0.5, -1.0, 2.0, 4.0], np.float32)


def info(**fields: object) -> PoolingInfo:
    given = {"task": "embed", "width": 64, "reach": "last", "max_model_len": 9}
    return PoolingInfo(**given | fields)  # type: ignore[arg-type]


def test_numbers_go_out_as_they_are_asked_for() -> None:
    assert written(NUMBERS, "float") == [0.5, -1.0, 2.0, 4.0]
    assert written(NUMBERS, "float", 2) == [[0.5, -1.0], [2.0, 4.0]]
    text = written(NUMBERS, "base64")
    assert isinstance(text, str)
    assert base64.b64decode(text) == NUMBERS.tobytes()
    assert written(NUMBERS[:0], "float", 2) == []


def test_a_model_whose_worker_is_away_may_be_an_embedder() -> None:
    here = Site(service_wait_seconds=0.1)
    here.engine.scheduler.workers = ()
    here.open()
    try:
        answer = here.post("/v1/embeddings", {"model": MODEL, "input": "hi"})
        assert (answer.status_code, error_of(answer)["code"]) == (503, "no_worker")
    finally:
        here.close()


def test_prompts() -> None:
    assert prompts_of(("a", (1, 2)), add_special=True) == [TextPrompt("a"), (1, 2)]


@pytest.mark.parametrize(
    ("dimensions", "fields", "code"),
    [
        (65, {"matryoshka": True}, "integer_above_max_value"),
        (32, {}, "unsupported_parameter"),
        (32, {"task": "classify", "matryoshka": True}, "unsupported_parameter"),
        (32, {"matryoshka": True, "sizes": (16, 48)}, "unsupported_value"),
    ],
)
def test_dimensions_that_cannot_be(dimensions: int, fields: dict[str, object], code: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_dimensions(dimensions, info(**fields))
    assert (caught.value.code, caught.value.param) == (code, "dimensions")


@pytest.mark.parametrize(
    ("dimensions", "fields"),
    [
        (None, {}),
        (64, {}),
        (1, {"matryoshka": True}),
        (48, {"matryoshka": True, "sizes": (16, 48)}),
    ],
)
def test_dimensions_that_can_be(dimensions: int | None, fields: dict[str, object]) -> None:
    check_dimensions(dimensions, info(**fields))


def test_padding_beyond_all_reason_is_refused_under_the_field_of_the_request(
    embedder: Whole,
) -> None:
    response = embedder.embed(["a", " " * 2_000_000])
    assert response.status_code == 400
    assert error_of(response)["param"] == "input"


def test_many_texts_at_once(embedder: Whole) -> None:
    """More than run in one step, and more than wait for the tokenizers together."""
    texts = [f"text {i} about the baton" for i in range(100)]
    answer = embedder.embed(texts).json()
    assert [entry["index"] for entry in answer["data"]] == list(range(100))
    for i in (0, 17, 99):
        alone = embedder.embed(texts[i]).json()["data"][0]["embedding"]
        assert answer["data"][i]["embedding"] == pytest.approx(alone, abs=1e-5)
    assert embedder.engine.scheduler.state.idle
