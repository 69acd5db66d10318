"""A damaged result is refused whole."""

from __future__ import annotations

import msgspec
import pytest

from baton.errors import WireError
from baton.protocol.token_columns import pack
from baton_scheduler.results.result_columns import columns
from tests.fakes.hash_worker import expected_tokens
from tests.support.scheduler.results import logprobs, messages, next_result, running, settle


@pytest.mark.parametrize(
    "change",
    [
        {"rows": b"123"},
        {"first": b""},
        {"counts": b"\x02\x01"},
        {"rows": pack([0, 0], "I")},
        {"rows": pack([0, 900], "I")},
        {"finished": {900: "stop"}},
        {"failed": {-1: "broken"}},
        {"logprobs": logprobs(3)},
    ],
)
def test_a_damaged_result_is_refused_whole(change: dict[str, object]) -> None:
    here = running("g", "g")
    bad = msgspec.structs.replace(next_result(here), **change)
    with pytest.raises(WireError):
        columns(bad, 32)
    assert messages(settle(here, bad)) == {}
    assert here.state.counters.stale_results == 1
    here.finish()
    for request in here.requests.values():
        assert (request.tokens, request.end) == expected_tokens(request.prompt, request.sampling)
