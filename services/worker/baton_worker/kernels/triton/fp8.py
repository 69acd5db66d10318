"""Products of 8-bit floats with scales of blocks; the twin is `kernels.fp8.product`.

Tensor cores multiply E4M3 codes as they are, from compute capability 8.9 on. In the interpreter,
whose numpy has no such numbers, a code becomes the half-precision number that it stands for: every
one of them has one, and products of two are exact in float32. So both ways multiply the same
numbers and differ in how sums are rounded alone.

On 8.9 the compiled product is one of E4M3, and on 9.0 that of tiles of 64 rows. Triton 3.9 widens
tiles of 16 rows there to half precision, which is the same numbers again.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_worker.kernels.fp8 import LEAST, MOST, Fp8Stack, Fp8Weight, Inputs
from baton_worker.kernels.triton import power, row_tiles
from baton_worker.kernels.triton.kv_codes import FP8, code, number
from baton_worker.kernels.triton.row_tiles import Visits

NATIVE = (8, 9)
"""The compute capability from which on tensor cores take the codes."""
_COLUMNS, _WIDE_COLUMNS = 64, 128
"""Columns of a tile of few rows, and of many."""
_STAGES = 4
"""Pipeline stages: tiles of codes that are loaded ahead."""
_INNER = (128, 64, 32)
"""Channels of a tile, which lie in one block of scales: the first that divides all blocks."""


@triton.jit
def _as_operand(codes, IS_NATIVE: tl.constexpr):
    """uint8 codes to what a product takes."""
    if IS_NATIVE:
        operand = codes.to(tl.float8e4nv, bitcast=True)
    else:
        operand = number(codes, FP8).to(tl.float16)
    return operand


@triton.jit(do_not_specialize=["tokens", "scale_token", "scale_group"])
def _quantise(
    x,
    static_scale,
    codes,
    scales,
    tokens,
    columns,
    group,
    scale_token,
    scale_group,
    limit,
    most_code,
    least_scale,
    IS_STATIC: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Codes and scale of one group of one token; beyond the last token those of zeros. The scale is
    that of the largest number, or the static one."""
    token, number_of_group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    channel = tl.arange(0, WIDTH)
    column = number_of_group * group + channel
    mask = (channel < group) & (column < columns)
    is_token = channel * 0 + token < tokens
    value = tl.load(x + token * columns + column, mask=mask & is_token, other=0.0)
    value = value.to(tl.float32)
    # A comparison with what is not a number fails.
    is_finite = tl.min((tl.abs(value) < float("inf")).to(tl.int32), 0) == 1
    value = tl.where(is_finite, value, 0.0)
    if IS_STATIC:
        scale = tl.load(static_scale)
    else:
        largest = tl.minimum(tl.max(tl.abs(value), 0), limit)
        scale = tl.maximum(tl.div_rn(largest, most_code), least_scale)
    limited = tl.minimum(tl.maximum(tl.div_rn(value, scale), -most_code), most_code)
    tl.store(codes + token * columns + column, code(limited, FP8), mask=mask)
    # Infinity and NaN have no code: the scale carries them.
    scale = tl.where(is_finite, scale, float("nan"))
    tl.store(scales + token * scale_token + number_of_group * scale_group, scale)


def quantise(x: Tensor, inputs: Inputs, multiple: int = 0) -> tuple[Tensor, Tensor]:
    """x [T, K] to codes float8 [T, K] and scales float32 [T, ceil(K / group)] in one launch, behind
    a maximum where all tokens share a scale. The twins are `Inputs.quantise` and, with a `multiple`
    of rows, `Inputs.in_columns`."""
    columns, group = x.shape[1], inputs.group or x.shape[1]
    tokens, groups = len(x) + (-len(x) % multiple if multiple else 0), -(-columns // group)
    static_scale = _static_scale(x, inputs)
    codes = torch.empty((tokens, columns), dtype=torch.uint8, device=x.device)
    shape = (groups, tokens) if multiple else (tokens, groups)
    scales = torch.empty(shape, dtype=torch.float32, device=x.device)
    scales = scales.T if multiple else scales
    if tokens:
        launch: Any = _quantise[(tokens, groups)]
        launch(
            *(x.contiguous(), static_scale, codes, scales),
            *(len(x), columns, group, *scales.stride()),
            *(float("inf") if inputs.most is None else inputs.most, MOST, LEAST),
            IS_STATIC=static_scale is not None,
            WIDTH=power(group),
            num_warps=min(16, max(1, power(group) // 256)),
        )
    return codes.view(torch.float8_e4m3fn), scales


def _static_scale(x: Tensor, inputs: Inputs) -> Tensor | None:
    """float32 []: the scale of all tokens, if they share one."""
    if inputs.scale is not None:
        return inputs.scale.float()
    if not inputs.per_tensor or not len(x):
        return None
    largest = x.abs().amax().float()
    largest = largest if inputs.most is None else largest.clamp(max=inputs.most)
    return (largest / torch.full_like(largest, MOST)).clamp(min=LEAST)


@triton.jit(do_not_specialize=["rows"])
def _product(
    x,
    x_scales,
    weight,
    w_scales,
    bias,
    out,
    visits,
    expert_of_block,
    rows,
    num_experts,
    columns,
    inner,
    divisor,
    x_group,
    x_groups,
    block_rows,
    block_columns,
    w_lines,
    w_groups,
    IS_NATIVE: tl.constexpr,
    GROUPED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
):
    """out[visit] = x[visit // divisor] @ weight[expert].T + bias[expert], see `row_tiles`. A tile
    of the inner axis is summed over codes, then scaled by row and column and added to the rest in
    float32: tensor cores of 9.0 keep about 14 bits of sums of 8-bit floats (DeepSeek-V3,
    arXiv:2412.19437, 3.3.2)."""
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_column = column < columns
    expert, visit, is_row = row_tiles.visits_of(visits, expert_of_block, rows, GROUPED, ROWS)
    if (expert < 0) | (expert >= num_experts):
        return
    row = visit // divisor
    weight_row = expert * columns + column
    scale_row = (expert * w_lines + column // block_rows) * w_groups
    total = tl.full((ROWS, COLUMNS), 0.0, tl.float32)
    for start in range(0, inner, INNER):
        k = start + tl.arange(0, INNER)
        has_channel = k < inner
        inputs = x + row[:, None] * inner + k[None, :]
        inputs = _as_operand(
            tl.load(inputs, mask=is_row[:, None] & has_channel[None, :], other=0), IS_NATIVE
        )
        weights = weight + weight_row[None, :] * inner + k[:, None]
        weights = _as_operand(
            tl.load(weights, mask=has_channel[:, None] & is_column[None, :], other=0), IS_NATIVE
        )
        partial = tl.dot(inputs, weights)
        x_scale = tl.load(x_scales + row * x_groups + start // x_group, mask=is_row, other=0.0)
        w_scale = tl.load(w_scales + scale_row + start // block_columns, mask=is_column, other=0.0)
        total += partial * x_scale[:, None] * w_scale[None, :]
    if bias is not None:
        total += tl.load(bias + weight_row, mask=is_column, other=0.0)[None, :].to(tl.float32)
    target = out + visit[:, None] * columns + column[None, :]
    tl.store(target, total.to(out.dtype.element_ty), mask=is_row[:, None] & is_column[None, :])


def refuses(weight: Fp8Weight, device: torch.device) -> str | None:
    """Why there is no product with this weight, as half a sentence; None if there is."""
    if device.type == "cuda" and not _is_native(device):
        return "tensor cores take 8-bit floats from compute capability 8.9 on"
    return None if _tile(weight.stack()) else "its blocks are no multiples of 32 channels"


def product(x: Tensor, weight: Fp8Weight) -> Tensor:
    """x [T, K] of any float dtype, rounded to the weight's `inputs`, to [T, N] of that dtype."""
    return grouped(x, weight.stack())


def grouped(
    x: Tensor,
    weights: Fp8Stack,
    bias: Tensor | None = None,
    *,
    visits: Visits | None = None,
    num_visits: int = 0,
    divisor: int = 1,
) -> Tensor:
    """See `grouped.product`: the same with codes on both sides."""
    count = len(x) if visits is None else num_visits
    experts, columns, inner = weights.shape
    out, size, group = x.new_empty(count, columns), _tile(weights), weights.inputs.group
    assert size is not None
    if not count:
        return out
    codes, scales = quantise(x, weights.inputs)
    rows = row_tiles.rows_of(count) if visits is None else visits.block
    blocks = triton.cdiv(count, rows) if visits is None else len(visits.experts)
    wide = _WIDE_COLUMNS if rows > row_tiles.FEW else _COLUMNS
    launch: Any = _product[(blocks, triton.cdiv(columns, wide))]
    launch(
        *(codes.view(torch.uint8), scales, weights.codes.view(torch.uint8), weights.scales),
        *(bias, out, *((None, None) if visits is None else (visits.rows, visits.experts))),
        *(count, experts, columns, inner, divisor, group or inner, scales.shape[1]),
        *(*weights.block, *weights.scales.shape[1:]),
        IS_NATIVE=_is_native(x.device),
        GROUPED=visits is not None,
        ROWS=rows,
        COLUMNS=wide,
        INNER=size,
        num_stages=_STAGES,
    )
    return out


def _is_native(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= NATIVE


def _tile(weights: Fp8Stack) -> int | None:
    """Channels of a tile, which lie in one block of scales; None: none does. A block that is as
    long as a row may be of any size: it has no end."""
    depth = weights.shape[2]
    limits = [size for size in (weights.block[1], weights.inputs.group or depth) if size < depth]
    return next((size for size in _INNER if all(limit % size == 0 for limit in limits)), None)
