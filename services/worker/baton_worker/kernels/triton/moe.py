"""Experts on a GPU: five launches, without padding to the busiest and without waiting; three where
visits are few.

Visits are laid out in blocks of one expert (`align`), both products run over blocks (`grouped`)
with a gate between them, and what visits return is added per token. Of few visits each is a block
of its own, and the first product applies the gate. The tile over the inner axis is fixed, so what a
visit returns does not depend on the other visits of its tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from baton_worker.kernels.fp8 import Fp8Stack, Inputs
from baton_worker.kernels.moe.experts import Gate
from baton_worker.kernels.packed_weights import PackedWeights
from baton_worker.kernels.triton import fp8, grouped, power, product_tiles, row_tiles
from baton_worker.kernels.triton.align import align
from baton_worker.kernels.triton.row_tiles import Visits

_WIDTH = 1024
_FULL, _WIDE = 32, 96
"""Visits of an expert, on average, from which on tiles have many rows, and most."""
_LONE = 4
"""Experts for each visit from which on visits are not laid out: few of them have one in common,
whose weight is then read twice."""


@triton.jit
def _combine(
    returned,
    experts,
    weights,
    out,
    num_experts,
    columns,
    SLOTS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """out [T, columns]: the weighted sum of what a token's visits [T * SLOTS, columns] return, in
    slot order and float32. Visits to no expert are not read."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    total = tl.full((WIDTH,), 0.0, tl.float32)
    for slot in range(SLOTS):
        visit = token * SLOTS + slot
        expert = tl.load(experts + visit)
        width = tl.where((expert >= 0) & (expert < num_experts), columns, 0)
        value = tl.load(returned + visit * columns + column, mask=column < width, other=0.0)
        if weights is None:
            total += value.to(tl.float32)
        else:
            total += value.to(tl.float32) * tl.load(weights + visit)
    tl.store(out + token * columns + column, total.to(out.dtype.element_ty), mask=column < columns)


def combine(returned: Tensor, experts: Tensor, weights: Tensor | None, num_experts: int) -> Tensor:
    """returned [T * slots, N] of experts int64 [T, slots] to [T, N]; weights float32 [T, slots]."""
    (tokens, slots), columns = experts.shape, returned.shape[1]
    out = returned.new_empty(tokens, columns)
    width = min(_WIDTH, power(columns))
    if tokens:
        launch: Any = _combine[(tokens, triton.cdiv(columns, width))]
        launch(
            *(returned, experts, weights, out, num_experts, columns),
            SLOTS=slots,
            WIDTH=width,
        )
    return out


@dataclass(frozen=True, slots=True)
class FusedExperts:
    """Tensors of two grouped products."""

    gate_up: Tensor | PackedWeights | Fp8Stack
    """[E, 2 * intermediate or intermediate, hidden]."""
    down: Tensor | PackedWeights | Fp8Stack
    """[E, hidden, intermediate]."""
    gate_up_bias: Tensor | None
    down_bias: Tensor | None
    gate: Gate
    fused: str | None = None
    """See `kernels.moe.experts.Experts`."""
    weigh_input: bool = False
    gate_up_inputs: Inputs | None = None
    """Rounding of inputs of packed 8-bit floats, where codes become floats of 16 bits."""
    down_inputs: Inputs | None = None
    few_rows: bool = False
    """Whether all tiles have few rows: then no bit of a token depends on the number of others."""


def forward(layer: FusedExperts, x: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
    """See `kernels.moe.experts.ExpertKernel`."""
    (count, slots), num_experts = experts.shape, layer.down.shape[0]
    experts, visits = experts.contiguous(), count * slots
    where = _visits(layer, x, experts)
    rows, divisor = x, slots
    if layer.weigh_input:
        rows, divisor = (x[:, None] * weights[..., None]).to(x.dtype).flatten(0, 1), 1
    inner = _inner(layer, rows, where, visits, divisor)
    returned = _product(
        *(inner, layer.down, layer.down_bias, layer.down_inputs),
        *(where, visits, 1),
    )
    scales = None if layer.weigh_input else weights.float().contiguous()
    return combine(returned, experts, scales, num_experts)


def _visits(layer: FusedExperts, x: Tensor, experts: Tensor) -> Visits:
    """Blocks of visits to one expert each; of a token alone no two have one in common."""
    visits, num_experts = experts.numel(), layer.down.shape[0]
    if len(experts) == 1 or visits * _LONE <= num_experts:
        return Visits(None, experts.flatten(), row_tiles.FEW)
    return align(experts, num_experts, _rows_of_blocks(layer, x, visits // num_experts))


def _inner(layer: FusedExperts, x: Tensor, where: Visits, visits: int, divisor: int) -> Tensor:
    """The input of the second product, in one launch for few visits."""
    weights, bias, inputs = layer.gate_up, layer.gate_up_bias, layer.gate_up_inputs
    places: Any = {"visits": where, "num_visits": visits, "divisor": divisor}
    if where.rows is None and layer.fused is not None and not isinstance(weights, Fp8Stack):
        return grouped.product(x, weights, bias, inputs=inputs, gate=layer.fused, **places)
    return layer.gate(_product(x, weights, bias, inputs, where, visits, divisor))


def _rows_of_blocks(layer: FusedExperts, x: Tensor, visits: int) -> int:
    """Rows of a tile, where an expert has so many visits on average."""
    if layer.few_rows or visits < _FULL:
        return row_tiles.FEW
    is_wide = visits >= _WIDE and product_tiles.has_wide(x) and not _unpacks_slowly(layer.gate_up)
    return row_tiles.MOST if is_wide else row_tiles.MANY


def _unpacks_slowly(weights: Tensor | PackedWeights | Fp8Stack) -> bool:
    """Whether tiles of most rows are slower than those of many: so it was measured on an H100."""
    integers = isinstance(weights, PackedWeights) and weights.values == "integer"
    return integers or isinstance(weights, Fp8Stack)


def _product(
    x: Tensor,
    weights: Tensor | PackedWeights | Fp8Stack,
    bias: Tensor | None,
    inputs: Inputs | None,
    where: Visits,
    visits: int,
    divisor: int,
) -> Tensor:
    places: Any = {"visits": where, "num_visits": visits, "divisor": divisor}
    if isinstance(weights, Fp8Stack):
        return fp8.grouped(x, weights, bias, **places)
    return grouped.product(x, weights, bias, inputs=inputs, **places)
