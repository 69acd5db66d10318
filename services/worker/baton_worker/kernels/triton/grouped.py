"""Products of rows with the weight of their expert, or of one layer, whose codes stay packed.

The layout is that of `kernels.packed_weights`: a program reads a tile of words once, next to each
other, and makes floats of its codes on the way into tensor cores. Integers, less their zero points,
and floats of 4 and 8 bits are exact in bfloat16; scales multiply sums in float32, but those of
4-bit floats, which are exact in bfloat16 too, and multiply the numbers. Weights that are floats
have no codes, and share the rest.

Few rows are cut along the inner axis (`SPLIT`), so that they fill a GPU: a second launch adds the
parts in order. How often depends on the weight alone, so a row's bits do not depend on the others
of its tile. Tiles have 16 or 64 rows, and 128 in prompts with packed weights, whose codes are read
once for each tile; see `product_tiles`. From 64 rows on a packed weight is the left operand, and
what a program computes is the product transposed.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_worker.kernels.cpu.linear import GATES
from baton_worker.kernels.fp8 import Inputs
from baton_worker.kernels.packed_weights import TILE, PackedWeights
from baton_worker.kernels.triton import (
    gated,
    multiprocessors,
    product_tiles,
    row_tiles,
    weight_sums,
)
from baton_worker.kernels.triton.fp8 import quantise
from baton_worker.kernels.triton.product_tiles import COLUMNS, Tile
from baton_worker.kernels.triton.row_tiles import Visits

VALUES = {"float": 0, "integer": 1, "e2m1": 2, "e4m3": 3}
SCALES = {"float": 0, "e8m0": 1, "e4m3": 2}
_INNER = 64
"""Channels of a tile of floats."""
_SUMMED = 1024
_PER_PROCESSOR = 2
"""Programs that few rows are cut into for each processor of the GPU."""


@triton.jit(do_not_specialize=["rows", "first_tiles"])
def _product(
    x,
    x_scales,
    words,
    scales,
    zeros,
    factors,
    bias,
    out,
    visits,
    expert_of_block,
    rows,
    num_experts,
    columns,
    inner,
    divisor,
    group,
    x_group,
    first_tiles,
    VALUES: tl.constexpr,
    SCALES: tl.constexpr,
    BITS: tl.constexpr,
    SLICES: tl.constexpr,
    FOLDED: tl.constexpr,
    GROUPED: tl.constexpr,
    SPLIT: tl.constexpr,
    GATE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TILE: tl.constexpr,
    LEFT: tl.constexpr,
):
    """out[visit] = x[visit // divisor] @ weight[expert].T + bias[expert], of a part of the channels
    if SPLIT; see `row_tiles.visits_of`. SLICES runs of channels of a tile share a scale, all of
    them if it is FOLDED into numbers. With a GATE, out is that of the first half of the columns
    with the second. Of a weight that is LEFT, tiles of the product have its columns first."""
    width = columns if GATE is None else columns // 2
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_column = column < width
    expert, visit, is_row = row_tiles.visits_of(visits, expert_of_block, rows, GROUPED, ROWS)
    if (expert < 0) | (expert >= num_experts):
        return
    first, last = tl.program_id(2) * first_tiles, tl.cdiv(inner, TILE)
    if SPLIT:
        last = tl.minimum(first + first_tiles, last)
    input_row = visit // divisor
    total = weight_sums.sums(
        *(x, x_scales, words, scales, zeros, factors),
        *(bias, input_row, is_row, expert, column, is_column),
        *(columns, inner, group, x_group, first, last),
        *(VALUES, SCALES, BITS, SLICES, FOLDED, ROWS, COLUMNS, TILE, LEFT),
    )
    if GATE is not None:
        up = weight_sums.sums(
            *(x, x_scales, words, scales, zeros, factors, bias, input_row, is_row, expert),
            *(column + width, is_column, columns, inner, group, x_group, first, last),
            *(VALUES, SCALES, BITS, SLICES, FOLDED, ROWS, COLUMNS, TILE, LEFT),
        )
        # Rounded as a launch that stores them does.
        total, up = total.to(out.dtype.element_ty), up.to(out.dtype.element_ty)
        total = gated.activated(total.to(tl.float32), up.to(tl.float32), GATE)
    if SPLIT:
        visit += tl.program_id(2).to(tl.int64) * rows
    target = (
        out + weight_sums.beside_columns(visit, LEFT) * width + weight_sums.of_columns(column, LEFT)
    )
    there = weight_sums.beside_columns(is_row, LEFT) & weight_sums.of_columns(is_column, LEFT)
    tl.store(target, total.to(out.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["count", "splits"])
def _sum(parts, bias, out, count, columns, splits, WIDTH: tl.constexpr):
    """out [rows, columns], `count` numbers: the sum of float32 parts [splits, rows, columns] in
    order, plus a bias."""
    index = tl.program_id(0).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    inside = index < count
    total = tl.full((WIDTH,), 0.0, tl.float32)
    part = parts + index
    for _ in range(splits):
        total += tl.load(part, mask=inside, other=0.0)
        part += count
    if bias is not None:
        total += tl.load(bias + index % columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + index, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _dequantise(
    words,
    scales,
    zeros,
    factors,
    out,
    columns,
    inner,
    group,
    first_column,
    num_columns,
    VALUES: tl.constexpr,
    SCALES: tl.constexpr,
    BITS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TILE: tl.constexpr,
):
    """out [inner, num_columns]: a tile of the columns `first_column` ... of one weight, in packed
    order."""
    RUN: tl.constexpr = TILE * BITS // 32
    position = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    column, inside, channel = first_column + position, position < num_columns, tl.arange(0, RUN)
    tile, groups = tl.program_id(1).to(tl.int64), tl.cdiv(inner, group)
    word = words + (tile * RUN + channel)[:, None] * columns + column[None, :]
    word = tl.load(word, mask=inside[None, :], other=0)
    for run in tl.static_range(32 // BITS):
        k = tile * TILE + run * RUN + channel
        scale_offset = tl.minimum((tile * TILE + run * RUN) // group, groups - 1) * columns + column
        floats = weight_sums.numbers((word >> (run * BITS)) & ((1 << BITS) - 1), VALUES)
        if VALUES == 1:
            floats -= tl.load(zeros + scale_offset, mask=inside, other=0).to(tl.float32)[None, :]
        scale = weight_sums.scales_of(scales + scale_offset, inside, SCALES)
        if SCALES == 2:
            scale *= tl.load(factors + column, mask=inside, other=0.0)
        floats *= scale[None, :]
        target = out + k[:, None] * num_columns + position[None, :]
        there = (k < inner)[:, None] & inside[None, :]
        tl.store(target, floats.to(out.dtype.element_ty), mask=there)


def product(
    x: Tensor,
    weights: Tensor | PackedWeights,
    bias: Tensor | None = None,
    *,
    inputs: Inputs | None = None,
    visits: Visits | None = None,
    num_visits: int = 0,
    divisor: int = 1,
    gate: str | None = None,
    out_dtype: torch.dtype | None = None,
    tile: Tile | None = None,
) -> Tensor:
    """Rows x [T, K] times weights [1, N, K] to [T, N] of their dtype; with visits row visit //
    divisor of x times the weight of the visit's expert, to [num_visits, N]. Rows of visits to no
    expert are not written.

    Args:
        bias: [E, N].
        inputs: how x is rounded for 8-bit floats; not at all without it.
        gate: a name in `kernels.cpu.linear.GATES`: of visits, the activation of the first half of
            what they return times the second, as `gated.gated` computes it of them, [.., N / 2].
        out_dtype: of the result, if not that of x.
        tile: of rows without visits, to measure one that is not chosen.
    """
    count = len(x) if visits is None else num_visits
    _, columns, inner = weights.shape
    width = columns if gate is None else columns // 2
    out = x.new_empty(count, width, dtype=out_dtype)
    if not count:
        return out
    form = _form(weights, x.dtype, inputs)
    x, x_scales = _prepared(x, weights, inputs)
    tile = tile if tile is not None and visits is None else _tile(x, weights, count, visits)
    tile = tile if gate is None else tile._replace(columns=tile.columns // 2)
    first_tiles = depth = triton.cdiv(inner, form["TILE"])
    if visits is None and count <= row_tiles.MANY:
        first_tiles = _share(columns, depth, x.device)
    splits = triton.cdiv(depth, first_tiles)
    parts = out if splits == 1 else out.new_empty((splits, count, columns), dtype=torch.float32)
    blocks = triton.cdiv(count, tile.rows) if visits is None else len(visits.experts)
    launch: Any = _product[(blocks, triton.cdiv(width, tile.columns), splits)]
    launch(
        *(x, x_scales, *_tensors(weights), bias if splits == 1 else None, parts),
        *((None, None) if visits is None else (visits.rows, visits.experts)),
        *(count, *weights.shape, divisor, _group(weights)),
        *((inputs.group if inputs is not None else None) or inner, first_tiles),
        **form | _launch_form(tile),
        GROUPED=visits is not None,
        SPLIT=splits > 1,
        GATE=None if gate is None else GATES[gate],
    )
    return out if splits == 1 else _added(parts, bias, out)


def _tile(x: Tensor, weights: Tensor | PackedWeights, count: int, visits: Visits | None) -> Tile:
    packed = isinstance(weights, PackedWeights)
    if visits is not None:
        return product_tiles.of_visits(visits.block, x, packed=packed)
    return product_tiles.of_rows(count, x, packed=packed)


def _launch_form(tile: Tile) -> dict[str, int | bool]:
    """Constants of the kernel that follow from the tile."""
    return {
        "ROWS": tile.rows,
        "COLUMNS": tile.columns,
        "LEFT": tile.left,
        "num_warps": tile.warps,
        "num_stages": tile.stages,
    }


def dequantise(weights: PackedWeights, out: Tensor, first: int = 0) -> Tensor:
    """Columns `first` ... of the one weight [1, N, K] as floats: fills `out` [K, columns], whose
    channels are in packed order, and returns it."""
    inner, columns = out.shape
    launch: Any = _dequantise[(triton.cdiv(columns, COLUMNS), triton.cdiv(inner, TILE))]
    values, scales = VALUES[weights.values], SCALES[weights.scale_type]
    launch(
        *(*_tensors(weights), out, weights.shape[1], inner, weights.group, first, columns),
        **{"VALUES": values, "SCALES": scales, "BITS": weights.bits},
        COLUMNS=COLUMNS,
        TILE=TILE,
    )
    return out


def _form(
    weights: Tensor | PackedWeights, dtype: torch.dtype, inputs: Inputs | None
) -> dict[str, int | bool]:
    """Constants of the kernel that follow from the format."""
    if isinstance(weights, Tensor):
        plain = {"VALUES": 0, "SCALES": 0, "BITS": 32, "SLICES": 1, "FOLDED": False}
        return plain | {"TILE": _INNER}
    folded = weights.values == "e2m1" and dtype is not torch.float16
    limit = min(weights.group, (inputs and inputs.group) or weights.depth, TILE)
    run = TILE * weights.bits // 32
    return {
        "VALUES": VALUES[weights.values],
        "SCALES": SCALES[weights.scale_type],
        "BITS": weights.bits,
        "SLICES": TILE // run if folded else max(1, min(limit, TILE) // run),
        "FOLDED": folded,
        "TILE": TILE,
    }


def _prepared(
    x: Tensor, weights: Tensor | PackedWeights, inputs: Inputs | None
) -> tuple[Tensor, Tensor | None]:
    """Inputs in the order of packed channels, as codes of 8-bit floats in x's dtype if they are
    rounded, and their scales."""
    if isinstance(weights, PackedWeights) and weights.order is not None:
        x = x.index_select(1, weights.order)
    if inputs is None:
        return x.contiguous(), None
    codes, scales = quantise(x, inputs)
    return codes.to(x.dtype), scales


def _group(weights: Tensor | PackedWeights) -> int:
    return TILE if isinstance(weights, Tensor) else weights.group


def _tensors(weights: Tensor | PackedWeights) -> tuple[Tensor | None, ...]:
    if isinstance(weights, Tensor):
        return weights, None, None, None
    return weights.words, weights.scales, weights.zeros, weights.factors


def _share(columns: int, tiles: int, device: torch.device) -> int:
    """Tiles of a program of few rows."""
    programs = _PER_PROCESSOR * multiprocessors(device) // triton.cdiv(columns, COLUMNS)
    return int(triton.cdiv(tiles, max(1, min(programs, tiles // 2))))


def _added(parts: Tensor, bias: Tensor | None, out: Tensor) -> Tensor:
    launch: Any = _sum[(triton.cdiv(out.numel(), _SUMMED),)]
    launch(parts, bias, out, out.numel(), out.shape[1], len(parts), WIDTH=_SUMMED)
    return out
