"""Options from bodies and headers."""

from __future__ import annotations

from typing import Any

import pytest

from baton.errors import InvalidRequest
from baton_gateway.api.options import check_choices, sampling, seed
from baton_gateway.config import Config
from baton_gateway.schemas.completions import CompletionRequest
from tests.fakes.gateway_app import (
    Site,
    chat,
    completion,
    error_of,
    site,
)


def _body(**fields: Any) -> CompletionRequest:
    return CompletionRequest.model_validate({"model": "m", "prompt": "x"} | fields)


def test_fan_out_is_bounded() -> None:
    config = Config(max_choices=6)
    check_choices(_body(n=3), 2, config)
    with pytest.raises(InvalidRequest) as caught:
        check_choices(_body(n=3), 3, config)
    assert (caught.value.code, caught.value.param) == ("array_above_max_length", "prompt")
    with pytest.raises(InvalidRequest) as caught:
        check_choices(_body(n=7), 1, config)
    assert (caught.value.code, caught.value.param) == ("integer_above_max_value", "n")


def test_a_request_limits_its_drafts() -> None:
    for fields, most in (({}, -1), ({"speculative": {"num_speculative_tokens": 0}}, 0)):
        told = sampling(_body(**fields), Config(), -1, -1)
        assert told.num_speculative_tokens == most


@pytest.mark.parametrize(
    ("fields", "temperature", "top_p"),
    [
        ({}, 1.0, 1.0),
        ({"temperature": 0.5, "top_p": 0.2}, 0.5, 0.2),
        ({"temperature": 0}, 0.0, 1.0),
        ({"temperature": 1e-9}, 0.0, 1.0),
        ({"top_p": 0}, 0.0, 1.0),
    ],
)
def test_zero_and_nearly_zero_are_greedy(
    fields: dict[str, Any], temperature: float, top_p: float
) -> None:
    told = sampling(_body(**fields), Config(), 2, -1)
    assert (told.temperature, told.top_p, told.logprobs) == (temperature, top_p, 2)


def test_seed() -> None:
    assert seed(_body(seed=5)) == 5
    assert seed(_body(seed=-(2**63))) == 2**63
    assert seed(_body()) != seed(_body())


@pytest.mark.parametrize("header", ["0", "-1", "1.5", "x", "", "86400001", "999999999"])
def test_a_bad_deadline_is_refused(shared_site: Site, header: str) -> None:
    response = shared_site.post("/v1/completions", completion(), headers={"x-deadline-ms": header})
    assert response.status_code == 400 and "X-Deadline-Ms" in error_of(response)["message"]


def test_a_deadline_comes_from_the_header_or_from_the_settings() -> None:
    with site(deadline_ms=60_000) as here:
        for path, body in (("/v1/completions", completion()), ("/v1/chat/completions", chat())):
            here.post(path, body, headers={"X-Deadline-Ms": "9000"})
        here.complete()
        first, second, third = [d for d in here.engine.scheduler.deadlines if d]
        assert 5000 < first <= 9000 and 5000 < second <= 9000 < 50_000 < third <= 60_000
