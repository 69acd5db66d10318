from __future__ import annotations

import pytest

from baton.errors import InvalidRequest
from baton_gateway.http.body import build
from baton_gateway.schemas.batches.batches import CreateBatchRequest

GOOD = {"input_file_id": "f", "endpoint": "/v1/completions", "completion_window": "2h"}


def test_the_window_is_in_hours() -> None:
    assert build(GOOD, CreateBatchRequest).seconds == 7200
    for window in ("24", "0h", "1000h", 24):
        with pytest.raises(InvalidRequest, match="completion_window"):
            build(GOOD | {"completion_window": window}, CreateBatchRequest)


def test_when_outputs_expire() -> None:
    after = {"anchor": "created_at", "seconds": 3600}
    body = build(GOOD | {"output_expires_after": after}, CreateBatchRequest)
    assert body.output_expires_after is not None and body.output_expires_after.seconds == 3600
    with pytest.raises(InvalidRequest, match="seconds"):
        build(GOOD | {"output_expires_after": after | {"seconds": 1}}, CreateBatchRequest)
