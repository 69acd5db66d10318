"""Requests of the Conversations API."""

from __future__ import annotations

from typing import Any

import pytest

from baton.errors import InvalidRequest
from baton_gateway.http.body import build
from baton_gateway.schemas.responses.conversation import CreateConversationRequest

OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "2"}


def test_a_conversation_may_begin_with_items_or_without() -> None:
    assert build({}, CreateConversationRequest).items == []
    items = [{"role": "user", "content": "a"}, OUTPUT]
    assert len(build({"items": items}, CreateConversationRequest).items) == 2


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"role": "tool", "content": "x"}, "items[0].role"),
        ({"type": "item_reference", "id": "x"}, "items[0].type"),
        ({"type": "computer_call"}, "items[0].type"),
    ],
)
def test_items_that_no_chat_could_have_are_refused(item: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        build({"items": [item]}, CreateConversationRequest)
    assert caught.value.param == param
