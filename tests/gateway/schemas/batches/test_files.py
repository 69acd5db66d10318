from __future__ import annotations

import pytest

from baton.errors import InvalidRequest
from baton_gateway.http.body import build
from baton_gateway.schemas.batches.files import FileFields, FileQuery


def test_fields_of_a_form_are_text() -> None:
    fields = build({"purpose": "batch", "expires_after[seconds]": "3600"}, FileFields)
    assert fields.expires_after_seconds == 3600
    with pytest.raises(InvalidRequest, match="assistants"):
        build({"purpose": "assistants"}, FileFields)


def test_the_query_of_a_list() -> None:
    assert build({"limit": "7", "order": "asc"}, FileQuery).limit == 7
    with pytest.raises(InvalidRequest, match="limit"):
        build({"limit": "0"}, FileQuery)
