"""The communicator of a single rank."""

from __future__ import annotations

import pytest
import torch

from baton_worker.distributed.communicator import SingleRank, numbers


def test_a_sum_over_one_rank_is_what_it_has() -> None:
    given = torch.tensor([1.0, 2.0])
    assert torch.equal(SingleRank().all_reduce(given), given)
    (only,) = SingleRank().all_gather(given)
    assert torch.equal(only, given)
    assert torch.equal(SingleRank().reduce_scatter([given]), given)
    SingleRank().broadcast(given, 0)
    assert given.tolist() == [1.0, 2.0]


def test_nobody_is_there_to_talk_to() -> None:
    with pytest.raises(AssertionError, match="no peer"):
        SingleRank().send(torch.zeros(1), 1)
    with pytest.raises(AssertionError, match="no peer"):
        SingleRank().receive(torch.zeros(1), 1)


def test_numbers_may_be_as_large_as_a_memory() -> None:
    assert numbers(SingleRank(), 2**50 + 1, torch.device("cpu")) == [2**50 + 1]
