"""The row of a tile, and the keys that its queries may see."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def row_of(block, query_starts, num_rows, QUERIES: tl.constexpr):
    """The row that owns a query block: the last r with starts[r] // QUERIES + r <= block."""
    low, high = 0, num_rows
    while high - low > 1:
        middle = (low + high) // 2
        first = tl.load(query_starts + middle) // QUERIES + middle
        if first <= block:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def key_bounds(
    earliest,
    stop,
    window,
    chunk,
    ranges,
    row,
    partition,
    split,
    span,
    WINDOWED: tl.constexpr,
    CHUNKED: tl.constexpr,
    RANGED: tl.constexpr,
):
    """The range of keys, up to `stop` at most, of a tile whose first query is at `earliest`."""
    start = oldest(earliest, window, chunk, WINDOWED, CHUNKED)
    if RANGED:
        start = tl.maximum(start, tl.load(ranges + row * 2))
        stop = tl.minimum(stop, tl.load(ranges + row * 2 + 1))
    if split:
        start = tl.maximum(start, partition * span)
        stop = tl.minimum(stop, partition * span + span)
    return start, stop


@triton.jit
def partition_keys(first, length, SPAN: tl.constexpr, MOST: tl.constexpr):
    """Keys of a partition of a row whose keys are `first` ... `length` - 1: SPAN, doubled until
    there are MOST partitions at most (0: any number). So memory for partitions does not grow with
    the length, and a row's partitions depend on that row alone."""
    span = SPAN
    if MOST:
        while tl.cdiv(length, span) - first // span > MOST:
            span *= 2
    return span


@triton.jit
def oldest(earliest, window, chunk, WINDOWED: tl.constexpr, CHUNKED: tl.constexpr):
    """The first key of a row, or of a tile, whose first new token is at `earliest`."""
    start = 0
    if WINDOWED:
        start = tl.maximum(start, earliest - window + 1)
    if CHUNKED:
        start = tl.maximum(start, earliest // chunk * chunk)
    return start


@triton.jit
def in_tree(keys, is_key, begin, context, bits, depths):
    """Which of the `keys` a query with these ancestors sees, and where they are: those of this
    step at their depth behind the `context`, not at their place."""
    new_token = keys - context
    depth = tl.load(depths + begin + new_token, mask=is_key & (new_token >= 0), other=0)
    bit = tl.minimum(tl.maximum(new_token, 0), 63)
    is_ancestor = ((bits[:, None] >> bit[None, :].to(tl.int64)) & 1) != 0
    visible = is_ancestor | ((new_token < 0) | (new_token > 63))[None, :]
    return visible, tl.where(new_token >= 0, context + depth, keys)
