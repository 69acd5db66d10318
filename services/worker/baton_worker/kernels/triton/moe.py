"""Experts on a GPU: one fused product over all of them, without padding to the busiest.

The visits of an expert are laid out in blocks of `BLOCK_ROWS`; the grid runs over blocks, each of
which reads one expert's weight. Nothing waits for the device: the number of blocks is bounded on
the host, and a block beyond the last returns at once. The tile over the inner axis is fixed, so
what a visit returns does not depend on the other visits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_worker.kernels.moe.dispatch import weighted_sum
from baton_worker.kernels.moe.experts import Experts

BLOCK_ROWS = 16
_BLOCK_COLUMNS = 64
_BLOCK_INNER = 64


@triton.jit  # type: ignore[untyped-decorator]
def _product(  # type: ignore[no-untyped-def]
    x,
    weight,
    bias,
    out,
    visits,
    expert_of_block,
    num_experts,
    columns,
    inner,
    divisor,
    HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
):
    """out[visit] = x[visit // divisor] @ weight[expert].T + bias[expert]; visit < 0 is padding."""
    expert = tl.load(expert_of_block + tl.program_id(0))
    if expert >= num_experts:
        return
    visit = tl.load(visits + tl.program_id(0) * ROWS + tl.arange(0, ROWS))
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    real, inside = visit >= 0, column < columns
    matrix = weight + expert.to(tl.int64) * columns * inner
    total = tl.full((ROWS, COLUMNS), 0.0, tl.float32)
    for start in range(0, inner, INNER):
        k = start + tl.arange(0, INNER)
        rows = x + (visit // divisor)[:, None] * inner + k[None, :]
        a = tl.load(rows, mask=real[:, None] & (k < inner)[None, :], other=0.0)
        b = matrix + column[None, :].to(tl.int64) * inner + k[:, None]
        b = tl.load(b, mask=(k < inner)[:, None] & inside[None, :], other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee")
    if HAS_BIAS:
        added = tl.load(bias + expert * columns + column, mask=inside, other=0.0)
        total += added[None, :].to(tl.float32)
    target = out + visit[:, None] * columns + column[None, :]
    tl.store(target, total.to(out.dtype.element_ty), mask=real[:, None] & inside[None, :])


class Blocks(NamedTuple):
    """Visits by expert, each expert's padded to whole blocks."""

    visits: Tensor
    """int64 [num_blocks * BLOCK_ROWS], -1 where a block is not full."""
    experts: Tensor
    """int64 [num_blocks]: the expert of each block, E for a block that is not used."""


def blocks(experts: Tensor, num_experts: int) -> Blocks:
    """Lay out the visits of int64 [T, slots] without waiting for the device."""
    flat = experts.flatten()
    flat = torch.where((flat >= 0) & (flat < num_experts), flat, num_experts)
    num_visits, device = flat.numel(), flat.device
    counts = torch.zeros(num_experts + 1, dtype=torch.int64, device=device)
    counts.scatter_add_(0, flat, torch.ones_like(flat))
    # Not `counts[num_experts] = 0`: that copies a number of the host, which no capture allows.
    counts[num_experts:].zero_()
    ends = (counts + (BLOCK_ROWS - 1)).div(BLOCK_ROWS, rounding_mode="floor").cumsum(0)
    # Each expert wastes less than a block, and only an expert with visits has any.
    bound = num_visits // BLOCK_ROWS + min(num_experts, num_visits)
    order = flat.argsort(stable=True)
    expert = flat[order]
    begins = ends - (counts + (BLOCK_ROWS - 1)).div(BLOCK_ROWS, rounding_mode="floor")
    rank = torch.arange(num_visits, device=device) - (counts.cumsum(0) - counts)[expert]
    place = begins[expert] * BLOCK_ROWS + rank
    # Visits to no expert go to one row beyond the last block.
    place = torch.where(expert < num_experts, place, bound * BLOCK_ROWS)
    visits = torch.full((bound * BLOCK_ROWS + 1,), -1, dtype=torch.int64, device=device)
    visits.scatter_(0, place, order)
    numbers = torch.arange(bound, device=device)
    owners = torch.searchsorted(ends[:num_experts].contiguous(), numbers, right=True)
    return Blocks(visits[:-1], owners)


def product(
    x: Tensor, weight: Tensor, bias: Tensor | None, where: Blocks, num_visits: int, divisor: int
) -> Tensor:
    """x [rows, inner], row visit // divisor of which goes to weight [E, columns, inner], to
    [num_visits, columns]; rows of visits to no expert are zero."""
    num_experts, columns, inner = weight.shape
    out = x.new_zeros((num_visits, columns))
    grid = (where.experts.numel(), triton.cdiv(columns, _BLOCK_COLUMNS))
    if grid[0]:
        launch: Any = _product[grid]
        launch(
            x,
            weight,
            bias,
            out,
            where.visits,
            where.experts,
            num_experts,
            columns,
            inner,
            divisor,
            HAS_BIAS=bias is not None,
            ROWS=BLOCK_ROWS,
            COLUMNS=_BLOCK_COLUMNS,
            INNER=_BLOCK_INNER,
        )
    return out


def forward(layer: Experts, x: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
    """Both products of every visited expert in two launches; see `ExpertKernel`."""
    slots = weights.shape[1]
    where = blocks(experts, layer.down.shape[0])
    rows, divisor = x.contiguous(), slots
    if layer.weigh_input:
        rows, divisor = (x[:, None] * weights[..., None]).to(x.dtype).flatten(0, 1), 1
    given = product(rows, layer.gate_up, layer.gate_up_bias, where, weights.numel(), divisor)
    inner = layer.gate(given).contiguous()
    returned = product(inner, layer.down, layer.down_bias, where, weights.numel(), 1)
    weights = torch.ones_like(weights) if layer.weigh_input else weights
    return weighted_sum(returned.view(*weights.shape, -1), weights)
