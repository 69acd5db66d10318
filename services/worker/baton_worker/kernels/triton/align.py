"""Visits of tokens to experts, laid out in blocks of one expert each, in one launch.

Nothing waits for the device: the number of blocks is bounded on the host, and blocks beyond the
last belong to no expert.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_worker.kernels.triton import power
from baton_worker.kernels.triton.row_tiles import Visits

_AT_ONCE = 1024
"""Visits that a program looks at together."""


@triton.jit(do_not_specialize=["num_visits", "num_blocks"])
def _align(
    experts,
    rows,
    owners,
    num_visits,
    num_blocks,
    num_experts,
    EXPERTS: tl.constexpr,
    VISITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The blocks of one expert: its visits in order, then -1. The last program writes the blocks of
    no expert. Each program counts all visits, so that none waits for another."""
    own_expert, expert_number = tl.program_id(0), tl.arange(0, EXPERTS)
    counts = tl.zeros((EXPERTS,), tl.int32)
    for first in range(0, num_visits, VISITS):
        visit = first + tl.arange(0, VISITS)
        expert = tl.load(experts + visit, mask=visit < num_visits, other=-1).to(tl.int32)
        is_expert = (expert >= 0) & (expert < num_experts)
        counts += tl.histogram(tl.where(is_expert, expert, num_experts), EXPERTS)
    blocks = tl.where(expert_number < num_experts, (counts + BLOCK - 1) // BLOCK, 0)
    first_block = tl.sum(tl.where(expert_number < own_expert, blocks, 0), 0)
    end_block = first_block + tl.sum(tl.where(expert_number == own_expert, blocks, 0), 0)
    end_block = tl.where(own_expert == num_experts, num_blocks, end_block)
    for first in range(first_block, end_block, VISITS):
        block = first + tl.arange(0, VISITS)
        tl.store(owners + block, tl.zeros((VISITS,), tl.int32) + own_expert, mask=block < end_block)
    next_row = first_block * BLOCK
    for first in range(0, num_visits, VISITS):
        visit = first + tl.arange(0, VISITS)
        expert = tl.load(experts + visit, mask=visit < num_visits, other=-1).to(tl.int32)
        is_own = (expert == own_expert) & (expert < num_experts)
        rank = tl.cumsum(is_own.to(tl.int32), 0) - 1
        tl.store(rows + next_row + rank, visit, mask=is_own)
        next_row += tl.sum(is_own.to(tl.int32), 0)
    padding_row = next_row + tl.arange(0, BLOCK)
    end = tl.where(own_expert == num_experts, 0, end_block * BLOCK)
    tl.store(rows + padding_row, tl.zeros((BLOCK,), tl.int32) - 1, mask=padding_row < end)


def align(experts: Tensor, num_experts: int, block: int) -> Visits:
    """Lay out the visits of int64 [T, slots], without those to no expert."""
    num_visits = experts.numel()
    # Each expert wastes less than a block, and only an expert with visits has any.
    bound = num_visits // block + min(num_experts, num_visits)
    rows, owners = (
        torch.empty(size, dtype=torch.int32, device=experts.device)
        for size in (bound * block, bound)
    )
    if bound:
        launch: Any = _align[(num_experts + 1,)]
        launch(
            *(experts.contiguous(), rows, owners, num_visits, bound, num_experts),
            EXPERTS=power(num_experts + 1),
            VISITS=_AT_ONCE,
            BLOCK=block,
        )
    return Visits(rows, owners, block)
