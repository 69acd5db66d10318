"""Tokens come to all ranks, and the sums of what they have got come back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from baton_worker.distributed.all2all import ALL2ALL
from tests.fakes.threaded_ranks import together

WAYS = [
    pytest.param("naive", marks=pytest.mark.row("F06.22")),
    pytest.param("allgather_reducescatter", marks=pytest.mark.row("F06.27")),
]


def rows(rank: int, count: int) -> Tensor:
    return torch.randn((count, 5), generator=torch.Generator().manual_seed(rank))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("counts", [[3, 1], [2, 0], [0, 0, 4], [1, 5, 2]])
def test_what_is_gathered_comes_back_as_sums(way: str, counts: list[int]) -> None:
    """Ranks have different numbers of tokens, or none; whole numbers, so that sums are exact."""
    size = len(counts)
    whole = torch.cat([rows(rank, count) for rank, count in enumerate(counts)])
    summands = [torch.randint(-9, 9, whole.shape).float() for _ in range(size)]

    def part(ranks: Any) -> tuple[Tensor, Tensor]:
        exchange = ALL2ALL.load(way)(ranks)
        mine = rows(ranks.rank, counts[ranks.rank])
        return exchange.begin_gather(mine, counts)(), exchange.scatter(summands[ranks.rank], counts)

    totals = torch.stack(summands).sum(0).split(counts)
    for rank, (gathered, scattered) in enumerate(together(size, part)):
        assert torch.equal(gathered, whole)
        assert torch.equal(scattered, totals[rank])


@pytest.mark.parametrize("way", WAYS)
def test_rows_are_delivered_in_the_order_of_ranks(way: str) -> None:
    """Some to itself, none to others, or none at all."""
    for counts in ([[1, 2, 0], [0, 0, 3], [2, 0, 1]], [[0, 0], [0, 0]], [[0, 4], [0, 0]]):
        size = len(counts)
        given = [rows(rank, sum(counts[rank])) for rank in range(size)]

        def part(ranks: Any) -> Tensor:
            return ALL2ALL.load(way)(ranks).deliver(given[ranks.rank], counts)  # type: ignore[no-any-return] # noqa: B023

        for rank, found in enumerate(together(size, part)):
            parts = [torch.split(given[source], counts[source])[rank] for source in range(size)]
            assert torch.equal(found, torch.cat(parts))


@pytest.mark.parametrize("way", WAYS)
def test_bytes_pass_too(way: str) -> None:
    given = [torch.arange(8, dtype=torch.uint8).view(2, 4), torch.ones((1, 4), dtype=torch.uint8)]
    for found in together(
        2, lambda ranks: ALL2ALL.load(way)(ranks).begin_gather(given[ranks.rank], [2, 1])()
    ):
        assert torch.equal(found, torch.cat(given)) and found.dtype == torch.uint8
