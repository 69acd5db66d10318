"""Requests for message batches."""

from __future__ import annotations

from typing import Any

import pytest

from baton.errors import InvalidRequest
from baton_gateway.http.body import build
from baton_gateway.schemas.anthropic.batches import CreateMessageBatchRequest


@pytest.mark.parametrize(
    ("requests", "param"),
    [
        ([], "requests"),
        ([{"custom_id": "a b", "params": {}}], "requests[0].custom_id"),
        ([{"custom_id": "a", "params": 5}], "requests[0].params"),
        ([{"custom_id": "a", "params": {}}] * 2, "requests[1].custom_id"),
        ([{"custom_id": "a", "params": {"stream": True}}], "requests[0].params.stream"),
    ],
)
def test_what_cannot_be_is_named(requests: list[Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        build({"requests": requests}, CreateMessageBatchRequest)
    assert error.value.param == param
