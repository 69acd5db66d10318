"""Queries of a stream that is followed; the events are in the tests of background responses."""

from __future__ import annotations

import pytest

from baton.errors import InvalidRequest
from baton_gateway.api.responses.stream_follower import StreamQuery
from baton_gateway.http.body import build


def test_a_query_is_text() -> None:
    query = build({"stream": "true", "starting_after": "5"}, StreamQuery)
    assert query.stream and query.starting_after == 5
    assert not build({}, StreamQuery).stream
    with pytest.raises(InvalidRequest, match="starting_after"):
        build({"starting_after": "x"}, StreamQuery)
