from __future__ import annotations

import pytest

from baton.errors import InvalidRequest
from baton_gateway.http.body import build
from baton_gateway.schemas.batches.uploads import CompleteUploadRequest, CreateUploadRequest


def test_requests_are_strict() -> None:
    good = {"filename": "f", "bytes": 3, "mime_type": "text/plain", "purpose": "batch"}
    assert build(good, CreateUploadRequest).bytes == 3
    for change in ({"bytes": -1}, {"bytes": "3"}, {"filename": ""}, {"purpose": "fine-tune"}):
        with pytest.raises(InvalidRequest) as refused:
            build(good | change, CreateUploadRequest)
        assert refused.value.param == next(iter(change))
    with pytest.raises(InvalidRequest, match="part_ids"):
        build({}, CompleteUploadRequest)
