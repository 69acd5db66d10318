"""`include` in a URL."""

from __future__ import annotations

import pytest

from baton.errors import InvalidRequest
from baton_gateway.api.responses.stream_follower import StreamQuery
from baton_gateway.http.body import build
from baton_gateway.schemas.responses.include_query import IncludeQuery, query_fields
from baton_gateway.schemas.responses.item_list import PageQuery

ENCRYPTED, LOGPROBS = "reasoning.encrypted_content", "message.output_text.logprobs"


def test_every_value_is_checked() -> None:
    for model in (IncludeQuery, StreamQuery, PageQuery):
        pairs = [("include[]", ENCRYPTED), ("after", "x"), ("include", LOGPROBS)]
        assert build(query_fields(pairs), model).include == [ENCRYPTED, LOGPROBS]
        assert build(query_fields([]), model).include == []
        for wrong in ([("include", "x"), *pairs], [*pairs, ("include[]", "")], pairs * 9):
            with pytest.raises(InvalidRequest) as caught:
                build(query_fields(wrong), model)
            assert caught.value.status == 400 and str(caught.value.param).startswith("include")
