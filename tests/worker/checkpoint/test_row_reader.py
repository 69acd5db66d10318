"""Weights come to their destination a few rows at a time, and whole."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from baton_worker.checkpoint.row_reader import Rows, copy_rows
from baton_worker.distributed.shard_spec import Shard
from baton_worker.distributed.shard_weights import WeightShard
from baton_worker.kernels.quantized_weights import BlockQuantized, UnreadWeight, quantise

ROWS, COLUMNS = 3001, 512


@pytest.fixture
def weight() -> Tensor:
    return torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("shape", [(ROWS, COLUMNS), (ROWS,), (3, 1000, 100), (), (0, 8)])
def test_tensors_of_any_shape(shape: tuple[int, ...]) -> None:
    given, found = torch.randn(shape), torch.empty(shape, dtype=torch.bfloat16)
    copy_rows(found, given)
    assert torch.equal(found, given.bfloat16())


def test_rows_that_do_not_lie_together(weight: Tensor) -> None:
    found = torch.empty(COLUMNS, ROWS)
    copy_rows(found, weight.T)
    assert torch.equal(found, weight.T)


def test_what_is_read_by_rows_is_never_there_as_a_whole(weight: Tensor) -> None:
    blocks, read, found = quantise(weight, "int8"), list[int](), torch.empty(ROWS, COLUMNS)

    def counted(rows: slice) -> BlockQuantized:
        read.append(blocks[rows].shape[0])
        return blocks[rows]

    copy_rows(found, UnreadWeight("int8", weight.shape, counted))
    assert torch.equal(found, blocks.dequantise())
    copy_rows(found, Rows(weight.shape, lambda rows: counted(rows).dequantise()))
    assert torch.equal(found, blocks.dequantise())
    assert sum(read) == 2 * ROWS and max(read) < ROWS / 4


def test_a_part_takes_its_share_of_the_whole(weight: Tensor) -> None:
    found = torch.empty(ROWS, COLUMNS // 2)
    part = WeightShard(torch.empty_like(weight, device="meta"), found, Shard(1, 2, None), False)
    copy_rows(part, Rows(weight.shape, lambda rows: weight[rows]))
    assert torch.equal(found, weight[:, COLUMNS // 2 :])
