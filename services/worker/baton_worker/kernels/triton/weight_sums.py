"""Sums of rows times some columns of a weight, packed or in floats: parts of the kernels of
`grouped`, which says what VALUES and SCALES mean."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def numbers(codes, VALUES: tl.constexpr):
    """float32 of int32 codes, by their bits: a conversion is slower, and each is exact."""
    if VALUES == 1:
        # 2^23 + code, less 2^23.
        number = (codes | 0x4B000000).to(tl.float32, bitcast=True) - 8388608.0
    elif VALUES == 2:
        # Sign, exponent and fraction in their places; 126 is the difference of the biases.
        bits = ((codes & 8) << 28) | ((codes & 7) << 22)
        number = bits.to(tl.float32, bitcast=True) * 8.507059173023462e37
    else:
        bits = ((codes & 128) << 24) | ((codes & 127) << 20)
        number = bits.to(tl.float32, bitcast=True) * 1.329227995784916e36
    return number


@triton.jit
def scales_of(source, inside, SCALES: tl.constexpr):
    """float32 of stored scales."""
    scale = tl.load(source, mask=inside, other=0)
    if SCALES == 1:
        # The code 0 is 2^-127, which has no exponent of its own; 255 is no number.
        bits = tl.where(scale == 0, 0x400000, scale.to(tl.int32) << 23)
        number = tl.where(scale == 255, float("nan"), bits.to(tl.float32, bitcast=True))
    elif SCALES == 2:
        number = numbers(scale.to(tl.int32), 3)
    else:
        number = scale.to(tl.float32)
    return number


@triton.jit
def of_columns(x, LEFT: tl.constexpr):
    """A vector along the columns of a weight: the first axis of a tile if the weight is LEFT."""
    return x[:, None] if LEFT else x[None, :]


@triton.jit
def beside_columns(x, LEFT: tl.constexpr):
    """A vector along the other axis, that of rows or of channels."""
    return x[None, :] if LEFT else x[:, None]


@triton.jit
def _inputs(x, input_row, is_row, k, inner, LEFT: tl.constexpr):
    """Channels `k` of the rows that visits read; of LEFT weights channels come first."""
    source_ptr = x + beside_columns(input_row, LEFT) * inner + of_columns(k, LEFT)
    inside = beside_columns(is_row, LEFT) & of_columns(k < inner, LEFT)
    return tl.load(source_ptr, mask=inside, other=0.0)


@triton.jit
def _float_sums(
    x,
    words,
    input_row,
    is_row,
    expert,
    column,
    is_column,
    columns,
    inner,
    first,
    last,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TILE: tl.constexpr,
):
    """The product of rows with some columns of a weight in floats, of the tiles `first` ...
    `last` - 1 of the inner axis."""
    total = tl.full((ROWS, COLUMNS), 0.0, tl.float32)
    for tile in range(first, last):
        k = tile * TILE + tl.arange(0, TILE)
        inputs = _inputs(x, input_row, is_row, k, inner, False)
        weights = words + (expert * columns + column[None, :]) * inner + k[:, None]
        weights = tl.load(weights, mask=(k < inner)[:, None] & is_column[None, :], other=0.0)
        total = tl.dot(inputs, weights, total, input_precision="ieee")
    return total


@triton.jit
def _scale_at(expert, channel, column, columns, groups, group):
    """Where the scales of a channel are. The last group may be longer than the channels that are
    left."""
    return (expert * groups + tl.minimum(channel // group, groups - 1)) * columns + column


@triton.jit
def _input_scales(x_scales, input_row, is_row, channel, x_group, x_groups):
    """The scales of the rows' inputs at a channel."""
    offset = input_row * x_groups + tl.minimum(channel // x_group, x_groups - 1)
    return tl.load(x_scales + offset, mask=is_row, other=0.0)


@triton.jit
def _run(
    word, run: tl.constexpr, zero, VALUES: tl.constexpr, BITS: tl.constexpr, LEFT: tl.constexpr
):
    """The numbers of a run of codes in each word, less their `zero` if they are integers."""
    weights = numbers((word >> (run * BITS)) & ((1 << BITS) - 1), VALUES)
    if VALUES == 1:
        weights -= of_columns(zero, LEFT)
    return weights


@triton.jit
def _added(total, inputs, weights, LEFT: tl.constexpr):
    """`total` and a product of inputs and weights, in the order of the tile."""
    if LEFT:
        total = tl.dot(weights, inputs, total, input_precision="ieee")
    else:
        total = tl.dot(inputs, weights, total, input_precision="ieee")
    return total


@triton.jit
def _packed_sums(
    x,
    x_scales,
    words,
    scales,
    zeros,
    input_row,
    is_row,
    expert,
    column,
    is_column,
    columns,
    inner,
    group,
    x_group,
    first,
    last,
    VALUES: tl.constexpr,
    SCALES: tl.constexpr,
    BITS: tl.constexpr,
    SLICES: tl.constexpr,
    FOLDED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TILE: tl.constexpr,
    LEFT: tl.constexpr,
):
    """The same of a packed weight; see `_product`. If the weight is LEFT, [COLUMNS, ROWS]."""
    RUN: tl.constexpr = TILE * BITS // 32
    FIRST: tl.constexpr = COLUMNS if LEFT else ROWS
    SECOND: tl.constexpr = ROWS if LEFT else COLUMNS
    total = tl.full((FIRST, SECOND), 0.0, tl.float32)
    channel = tl.arange(0, RUN)
    groups, x_groups = tl.cdiv(inner, group), tl.cdiv(inner, x_group)
    for tile in range(first, last):
        word_row = (expert * tl.cdiv(inner, TILE) + tile) * RUN + channel
        word = words + beside_columns(word_row, LEFT) * columns + of_columns(column, LEFT)
        word = tl.load(word, mask=of_columns(is_column, LEFT), other=0)
        for first_run in tl.static_range(0, 32 // BITS, SLICES):
            first_channel = tile * TILE + first_run * RUN
            scale_offset = _scale_at(expert, first_channel, column, columns, groups, group)
            zero = 0.0
            if VALUES == 1:
                zero = tl.load(zeros + scale_offset, mask=is_column, other=0).to(tl.float32)
            partial = total if FOLDED else tl.full((FIRST, SECOND), 0.0, tl.float32)
            for run_in_slice in tl.static_range(SLICES):
                run = first_run + run_in_slice
                k = tile * TILE + run * RUN
                inputs = _inputs(x, input_row, is_row, k + channel, inner, LEFT)
                weights = _run(word, run, zero, VALUES, BITS, LEFT)
                if FOLDED:
                    scale_of_run = scales + _scale_at(expert, k, column, columns, groups, group)
                    weights *= of_columns(scales_of(scale_of_run, is_column, SCALES), LEFT)
                partial = _added(partial, inputs, weights.to(inputs.dtype), LEFT)
            if FOLDED:
                total = partial
            else:
                scale = scales_of(scales + scale_offset, is_column, SCALES)
                if VALUES == 3:
                    row = (input_row, is_row, first_channel, x_group, x_groups)
                    x_scale = _input_scales(x_scales, *row)
                    partial *= beside_columns(x_scale, LEFT)
                total += partial * of_columns(scale, LEFT)
    return total


@triton.jit
def sums(
    x,
    x_scales,
    words,
    scales,
    zeros,
    factors,
    bias,
    input_row,
    is_row,
    expert,
    column,
    is_column,
    columns,
    inner,
    group,
    x_group,
    first,
    last,
    VALUES: tl.constexpr,
    SCALES: tl.constexpr,
    BITS: tl.constexpr,
    SLICES: tl.constexpr,
    FOLDED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TILE: tl.constexpr,
    LEFT: tl.constexpr,
):
    """The product of rows with some columns of a weight, and a bias if there is one."""
    part = (input_row, is_row, expert, column, is_column, columns, inner)
    if VALUES == 0:
        total = _float_sums(x, words, *part, first, last, ROWS, COLUMNS, TILE)
    else:
        total = _packed_sums(
            *(x, x_scales, words, scales, zeros),
            *part,
            *(group, x_group, first, last),
            *(VALUES, SCALES, BITS, SLICES, FOLDED, ROWS, COLUMNS, TILE, LEFT),
        )
    if SCALES == 2:
        factor = tl.load(factors + expert * columns + column, mask=is_column, other=0.0)
        total *= of_columns(factor, LEFT)
    if bias is not None:
        added = tl.load(bias + expert * columns + column, mask=is_column, other=0.0)
        total += of_columns(added, LEFT).to(tl.float32)
    return total
