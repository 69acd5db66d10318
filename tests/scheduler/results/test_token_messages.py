"""Each gateway hears of its own sequences."""

from __future__ import annotations

import msgspec

from baton.protocol import PromptLogprobs
from baton.protocol.token_columns import unpack
from tests.support.scheduler.results import logprobs, messages, next_result, running, settle


def test_one_message_per_gateway_with_its_own_rows_and_logprobs() -> None:
    here = running("north", "south", "north")
    result = next_result(here)
    sent = messages(settle(here, msgspec.structs.replace(result, logprobs=logprobs(3))))
    assert unpack(sent["north"].handles, "I").tolist() == [1, 3]
    assert unpack(sent["south"].handles, "I").tolist() == [2]
    north, south = sent["north"].logprobs, sent["south"].logprobs
    assert north is not None and south is not None
    assert unpack(north.rows, "I").tolist() == [0, 1]
    assert unpack(north.top_ids).tolist() == [0, 2]
    assert unpack(south.rows, "I").tolist() == [0]
    assert unpack(south.top_ids).tolist() == [1]


def test_prompt_scores_reach_their_gateway_under_its_handle() -> None:
    here = running("north", "south")
    scores = PromptLogprobs(1, 1, logprobs(1))
    result = msgspec.structs.replace(next_result(here), prompt_logprobs=(scores,))
    sent = messages(settle(here, result))
    assert sent["north"].prompt_logprobs == ()
    assert [p.slot for p in sent["south"].prompt_logprobs] == [2]
