"""Items of a streamed response: what their tests as a whole do not reach."""

from __future__ import annotations

from itertools import count

import msgspec
import pytest

from baton_gateway.schemas.responses.output_items import CustomCallItem
from baton_gateway.streaming.response_items import OpenCustomCall


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (['{"in', 'put": "a\\n"}'], "a\n"),
        ([], ""),
        (['{"code": "a"}'], '{"code": "a"}'),
        (['{"input": 5}'], '{"input": 5}'),
    ],
)
def test_the_input_of_a_custom_call_is_the_one_text_in_it(written: list[str], read: str) -> None:
    """What the model made of it otherwise is handed on as it is."""
    call = OpenCustomCall(CustomCallItem("i", "c", "n", "in_progress"), 0, count().__next__)
    assert len(list(call.opening())) == 1
    assert not [event for part in written for event in call.add(part, [])]
    delta, done, item = (msgspec.to_builtins(event) for event in call.closing("completed"))
    assert (delta["delta"], done["input"], item["item"]["input"]) == (read,) * 3
