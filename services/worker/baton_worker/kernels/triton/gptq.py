"""Products with weights in the layout of GPTQ, and these weights as floats.

A program makes floats of a tile of codes and multiplies at once, so the floats of a weight are
never stored. The tile over the inner axis is fixed: what a row gets does not depend on the other
rows, below `UNPACKED` of them. Its twin is `kernels.gptq.GptqWeight.dequantise`, and a plain
product with that.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_worker.kernels.gptq import GptqWeight

_ROWS, _COLUMNS, _INNER = 16, 64, 32
UNPACKED = 256
"""Rows from which on a weight is unpacked for a product: the kernel would do so once for each tile
of rows, and the product of floats costs less than that."""


@triton.jit
def _numbers(words, scales, zeros, groups, k, column, columns, inner, BITS: tl.constexpr):
    """float32 [k, column]: a tile of the weight, transposed; zeros beyond its ends."""
    inside = (k < inner)[:, None] & (column < columns)[None, :]
    bit = k * BITS
    source = words + (bit // 32)[:, None].to(tl.int64) * columns + column[None, :]
    shift = (bit % 32)[:, None].to(tl.uint32)
    code = tl.load(source, mask=inside, other=0).to(tl.uint32, bitcast=True) >> shift
    if 32 % BITS != 0:
        # A code of three bits may begin in one word and end in the next.
        beyond = inside & (shift + BITS > 32)
        next_word = tl.load(source + columns, mask=beyond, other=0).to(tl.uint32, bitcast=True)
        code |= tl.where(beyond, next_word << ((32 - shift) & 31), 0)
    code = (code & ((1 << BITS) - 1)).to(tl.int32)
    group = tl.load(groups + k, mask=k < inner, other=0)
    group_offset = group[:, None].to(tl.int64) * columns + column[None, :]
    zero = tl.load(zeros + group_offset, mask=inside, other=0).to(tl.int32)
    scale = tl.load(scales + group_offset, mask=inside, other=0.0).to(tl.float32)
    return (code - zero).to(tl.float32) * scale


@triton.jit
def _dequantise(
    words,
    scales,
    zeros,
    groups,
    out,
    columns,
    inner,
    BITS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
):
    """out [columns, inner]: a tile of it."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    k = tl.program_id(1) * INNER + tl.arange(0, INNER)
    tile = _numbers(words, scales, zeros, groups, k, column, columns, inner, BITS)
    target = out + column[None, :].to(tl.int64) * inner + k[:, None]
    inside = (k < inner)[:, None] & (column < columns)[None, :]
    tl.store(target, tile.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def _product(
    x,
    words,
    scales,
    zeros,
    groups,
    out,
    rows,
    columns,
    inner,
    BITS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
):
    """out [rows, columns] = x [rows, inner] @ weight.T: a tile of it, summed in float32."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.full((ROWS, COLUMNS), 0.0, tl.float32)
    for start in range(0, inner, INNER):
        k = start + tl.arange(0, INNER)
        inputs = x + row[:, None].to(tl.int64) * inner + k[None, :]
        inputs = tl.load(inputs, mask=(row < rows)[:, None] & (k < inner)[None, :], other=0.0)
        numbers = _numbers(words, scales, zeros, groups, k, column, columns, inner, BITS)
        total = tl.dot(inputs, numbers.to(inputs.dtype), total, input_precision="ieee")
    target = out + row[:, None].to(tl.int64) * columns + column[None, :]
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    tl.store(target, total.to(out.dtype.element_ty), mask=inside)


def dequantise(weight: GptqWeight, dtype: torch.dtype = torch.float32) -> Tensor:
    """The weight as floats [N, K]."""
    columns, inner = weight.shape
    out = torch.empty(columns, inner, dtype=dtype, device=weight.words.device)
    grid = (triton.cdiv(columns, _COLUMNS), triton.cdiv(inner, _INNER))
    launch: Any = _dequantise[grid]
    launch(*_tensors(weight), out, columns, inner, weight.bits, COLUMNS=_COLUMNS, INNER=_INNER)
    return out


def refuses(weight: GptqWeight, device: torch.device) -> str | None:
    """None: there is a product with every weight on every GPU."""
    return None


def product(x: Tensor, weight: GptqWeight) -> Tensor:
    """x [T, K] of any float dtype, in which the product is too, to [T, N]."""
    columns, inner = weight.shape
    if len(x) >= UNPACKED:
        return x @ dequantise(weight, x.dtype).T
    out = x.new_empty(len(x), columns)
    grid = (triton.cdiv(len(x), _ROWS), triton.cdiv(columns, _COLUMNS))
    if grid[0]:
        launch: Any = _product[grid]
        launch(
            *(x.contiguous(), *_tensors(weight), out, len(x), columns, inner, weight.bits),
            ROWS=_ROWS,
            COLUMNS=_COLUMNS,
            INNER=_INNER,
        )
    return out


def _tensors(weight: GptqWeight) -> tuple[Tensor, ...]:
    return weight.words, weight.scales, weight.zeros, weight.groups
