"""Rows of a tile of a product: neighbours, or the visits of one expert."""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

FEW, MANY, MOST = 16, 64, 128
"""Rows of a tile."""


class Visits(NamedTuple):
    """Visits by expert, each expert's padded to whole blocks."""

    rows: Tensor | None
    """int32 [num_blocks * block], -1 where a block is not full; None: each block has one visit, and
    they are in order."""
    experts: Tensor
    """int32 or int64 [num_blocks]: the expert of each block, E for a block that is not used."""
    block: int
    """Rows of a block."""


def rows_of(count: int) -> int:
    """Rows of a tile for so many rows."""
    return FEW if count <= FEW else MANY


@triton.jit
def visits_of(visits, expert_of_block, rows, GROUPED: tl.constexpr, ROWS: tl.constexpr):
    """The expert of this program's block of rows, their visits int64 [ROWS], and which of them are
    real. Of GROUPED rows the expert of each block of visits is given, others are visits of one."""
    block = tl.program_id(0)
    if GROUPED:
        expert = tl.load(expert_of_block + block).to(tl.int64)
    if GROUPED and visits is None:
        visit = block.to(tl.int64) + tl.arange(0, ROWS)
        real = visit == block
    elif GROUPED:
        visit = tl.load(visits + block * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        real = visit >= 0
    else:
        expert = block.to(tl.int64) * 0
        visit = (block * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        real = visit < rows
    return expert, visit, real
