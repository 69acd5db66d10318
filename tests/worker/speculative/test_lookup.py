"""Drafts that are looked up in text that was seen before."""

from __future__ import annotations

import numpy as np

from baton_worker.speculative.lookup import NO_MATCH, LookupProposer, Match, common_suffix
from baton_worker.speculative.proposer import DraftRequest
from tests.support.worker.proposers import MostProbable


class Doubled(LookupProposer):
    """Says the last token once more, if it is even."""

    def look_up(self, request: DraftRequest) -> Match:
        last = request.tokens[-1:]
        return Match(last, 1) if last[0] % 2 == 0 else NO_MATCH


def test_every_sequence_is_looked_up_by_itself() -> None:
    requests = [DraftRequest(slot, np.array([3, slot], np.int32), 2) for slot in (4, 5)]
    found = Doubled().propose(requests, MostProbable())
    assert [drafts.tolist() for drafts in found] == [[4], []]


def test_last_tokens_in_which_two_texts_agree_are_counted_up_to_a_limit() -> None:
    text = np.arange(9, dtype=np.int32)
    assert common_suffix(text, text[3:], 8) == 6
    assert common_suffix(text, text, 4) == 4
    assert common_suffix(text, np.array([0, 7, 8], np.int32), 8) == 2
    assert common_suffix(text, text[:8], 8) == 0 == common_suffix(text, text[:0], 8)
