"""The process group of GPUs, without any."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from baton_worker.distributed.process_groups import Nccl
from tests.fakes.collectives import mine


@pytest.mark.row("F14.16")
def test_sums_of_gpus_are_taken_in_the_order_of_ranks_where_that_is_asked_for() -> None:
    class Seen(Nccl):
        """Three ranks, of which this is one, without a process group."""

        def __init__(self) -> None:
            self.rank, self.size, self._in_order = 1, 3, True

        def all_gather(self, tensor: Tensor) -> list[Tensor]:
            return [mine(0), tensor, mine(2)]

        def exchange(self, parts: list[Tensor], among: range) -> list[Tensor]:
            return [mine(rank) + parts[rank] for rank in among]

    total = mine(0) + mine(1) + mine(2)
    assert torch.equal(Seen().all_reduce(mine(1)), total)
    parts = [mine(0), mine(1), mine(2)]
    assert torch.equal(Seen().reduce_scatter(parts), 2 * mine(0) + 2 * mine(1) + 2 * mine(2))


def test_no_message_between_gpus_is_empty() -> None:
    class Group:
        """Rank 1 of a process group of four; messages that it is given come back."""

        def alltoall(self, got: list[Tensor], given: list[Tensor]) -> Any:
            assert len(got) == len(given) == 4
            assert len({tensor.data_ptr() for tensor in (*got, *given)}) == 8
            for target, source in zip(got, given, strict=True):
                assert source.numel() and target.shape == source.shape
                assert target.is_contiguous() and source.is_contiguous()
                target.copy_(source)
            return SimpleNamespace(wait=lambda: None)

    class Alone(Nccl):
        def __init__(self) -> None:
            self._group, self.rank, self.size = Group(), 1, 4

    parts = [torch.full((3, 2), 5.0), torch.arange(6.0).view(2, 3).T]
    for among in (range(0, 2), range(1, 3), range(1, 4, 2)):
        found = Alone().exchange(parts, among)
        assert all(map(torch.equal, found, parts)) and len(found) == 2
