"""What followed most often, in all texts of a group."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from baton_worker.speculative import suffix
from baton_worker.speculative.config import SpeculativeConfig
from baton_worker.speculative.proposer import DraftRequest
from baton_worker.speculative.suffix import SuffixProposer
from tests.support.worker.proposers import MostProbable, context


def asked(
    proposer: SuffixProposer, slot: int, *tokens: int, most: int = 9, group: bytes = b""
) -> list[int]:
    request = DraftRequest(slot, np.array(tokens, np.int32), most, group)
    [drafts] = proposer.propose([request], MostProbable())
    return drafts.tolist()


def proposing(**fields: Any) -> SuffixProposer:
    return SuffixProposer(context(SpeculativeConfig(9, method="suffix", **fields)))


@pytest.mark.row("F08.03")
def test_what_follows_most_often_and_no_more_than_has_matched() -> None:
    proposer = proposing()
    for slot, tokens in enumerate(([1, 2, 3, 4, 5], [9, 1, 2, 3, 6], [7, 1, 2, 3, 4, 8])):
        asked(proposer, slot, *tokens)
    assert asked(proposer, 5, 1, 2, 3) == [4, 8]
    assert asked(proposer, 5, 1, 2, 3, most=1) == [4]
    assert asked(proposer, 6, 6, 2, 3) == [4, 8], "of equals the latest"
    generous = proposing(suffix_decoding_max_spec_factor=3.0, suffix_decoding_min_token_prob=0.5)
    asked(generous, 0, 1, 2, 3, 4, 5, 6, 7)
    asked(generous, 1, 1, 2, 3, 9)
    assert asked(generous, 2, 8, 2, 3) == [9]
    asked(generous, 3, 1, 2, 5, 5, 5)
    assert asked(generous, 4, 4, 2, 5) == [5, 5]


@pytest.mark.row("F08.03")
def test_a_sequence_that_has_gone_is_remembered_in_its_group_alone() -> None:
    proposer = proposing()
    asked(proposer, 0, 1, 2, 3, 4, group=b"a")
    proposer.release(0)
    proposer.release(7)
    assert asked(proposer, 0, 1, 2, group=b"b") == []
    assert asked(proposer, 1, 1, 2, group=b"a") == [3, 4]


def test_groups_that_nobody_is_of_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suffix, "_MOST_GROUPS", 2)
    proposer = proposing()
    for number in range(4):
        asked(proposer, number, 1, 2, 3, group=bytes([number]))
        if number:
            proposer.release(number)
    assert len(proposer._indices) <= 3 and bytes([0]) in proposer._indices
