"""Paged attention for decode rows and prompt chunks in one launch.

The rows of a tile are (token, query head) pairs that share a key head, so a key is read once for
all of them. Prompt chunks run one program per tile, keys in blocks with an online softmax (Dao
2023, arXiv:2307.08691). A row of few new tokens would leave most of a GPU idle: its keys are cut
into partitions, counted from position 0, which run beside each other and are merged in their order
(flash decoding; vLLM's paged attention v2).

    query block -> row     programs are numbered so that row r owns starts[r] // Q + r and the
                           following ones; a program finds its row by bisection, none waits for
                           the host to count

Of latents (DeepSeek-V2, arXiv:2405.04434), whose first channels are the value, a tile is read once
and serves as key and as value. They are wide and shared by all heads of a layer, more than a tile
has rows for: programs divide the heads of a group among each other.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_worker.kernels.triton import kv_codes, power

PARTITION = 512
"""Keys of one program where rows have few new tokens; a multiple of every key block."""
_FEWEST_ROWS = 16
"""Rows of the smallest product of a tensor core."""
_TILE_ROWS = 64
_MOST_HEADS = 64
"""Query heads of one program; those that share a key head are dealt out evenly."""
_MOST_LATENT_HEADS = 16
"""As much as a tile of 512 channels leaves room for."""

_PER_MULTIPROCESSOR = 4
"""Programs that are in flight on one, or waiting to be."""

_COUNTS = ("num_rows", "table_width", "num_partitions", "at_least", "at_most")
"""What changes from step to step."""
_HIDDEN = tl.constexpr(float("-inf"))


@triton.jit  # type: ignore[untyped-decorator]
def _row_of(block, query_starts, num_rows, QUERIES: tl.constexpr):  # type: ignore[no-untyped-def]
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


@triton.jit  # type: ignore[untyped-decorator]
def _part(at, where, seen, CODES: tl.constexpr, NUMBER: tl.constexpr):  # type: ignore[no-untyped-def]
    """A tile of numbers or CODES at `at` + `where`, in NUMBER; a code without its scale."""
    x = tl.load(at + where, mask=seen, other=0)
    if CODES != 0:
        x = kv_codes.number(x, CODES)
    return x.to(NUMBER)


@triton.jit
def _weigh(most, total, score):  # type: ignore[no-untyped-def]
    """The greatest score and the sum of weights with a block of scores more, the factor on what was
    weighed before, and the block's weights."""
    above = tl.maximum(most, tl.max(score, 1))
    # Nothing seen yet is -inf, and -inf - -inf is no number: measured from 0 it weighs 0.
    base = tl.where(above == _HIDDEN, 0.0, above)
    fade, weight = tl.exp(most - base), tl.exp(score - base[:, None])
    return above, total * fade + tl.sum(weight, 1), fade, weight


@triton.jit
def _shares(most, one):  # type: ignore[no-untyped-def]
    """The greatest score of two partitions, and the factors on what each has weighed."""
    above = tl.maximum(most, one)
    base = tl.where(above == _HIDDEN, 0.0, above)
    return above, tl.exp(most - base), tl.exp(one - base)


@triton.jit
def _with_sink(most, total, sink):  # type: ignore[no-untyped-def]
    """The greatest score, the sum of weights and the factor on what was weighed, after one more
    score without a value."""
    above = tl.maximum(most, sink)
    fade = tl.exp(most - above)
    return above, total * fade + tl.exp(sink - above), fade


@triton.jit  # type: ignore[untyped-decorator]
def _bounds(  # type: ignore[no-untyped-def]
    earliest,
    stop,
    window,
    chunk,
    ranges,
    row,
    partition,
    split,
    WINDOWED: tl.constexpr,
    CHUNKED: tl.constexpr,
    RANGED: tl.constexpr,
    SPAN: tl.constexpr,
):
    """From which key to which (`stop` at most) a tile looks whose first query is at `earliest`."""
    start = 0
    if WINDOWED:
        start = tl.maximum(start, earliest - window + 1)
    if CHUNKED:
        start = tl.maximum(start, earliest // chunk * chunk)
    if RANGED:
        start = tl.maximum(start, tl.load(ranges + row * 2))
        stop = tl.minimum(stop, tl.load(ranges + row * 2 + 1))
    if split:
        start = tl.maximum(start, partition * SPAN)
        stop = tl.minimum(stop, partition * SPAN + SPAN)
    return start, stop


@triton.jit  # type: ignore[untyped-decorator]
def _first_partition(  # type: ignore[no-untyped-def]
    earliest, window, chunk, WINDOWED: tl.constexpr, CHUNKED: tl.constexpr, SPAN: tl.constexpr
):
    """The first partition that holds a key for a row whose first new token is at `earliest`."""
    start = 0
    if WINDOWED:
        start = tl.maximum(start, earliest - window + 1)
    if CHUNKED:
        start = tl.maximum(start, earliest // chunk * chunk)
    return start // SPAN


@triton.jit
def _in_tree(n, there, begin, context, bits, depths):  # type: ignore[no-untyped-def]
    """Which of the keys `n` a query with these ancestors sees, and where they are: those of this
    step at their depth behind the `context`, not at their place."""
    fresh = n - context
    depth = tl.load(depths + begin + fresh, mask=there & (fresh >= 0), other=0)
    number = tl.minimum(tl.maximum(fresh, 0), 63)
    related = ((bits[:, None] >> number[None, :].to(tl.int64)) & 1) != 0
    seen = related | ((fresh < 0) | (fresh > 63))[None, :]
    return seen, tl.where(fresh >= 0, context + depth, n)


@triton.jit(do_not_specialize=_COUNTS)  # type: ignore[untyped-decorator]
def _attend(  # type: ignore[no-untyped-def]
    query,
    pages,
    sinks,
    slopes,
    page_table,
    lengths,
    query_starts,
    places,
    ranges,
    ancestors,
    depths,
    last_keys,
    out,
    lse,
    sums,
    states,
    num_rows,
    table_width,
    num_partitions,
    at_least,
    at_most,
    query_stride,
    page_stride,
    token_stride,
    value_stride,
    head_stride,
    sinks_stride,
    scale,
    softcap,
    window,
    chunk,
    NUM_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    SHARED: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUES: tl.constexpr,
    LATENT: tl.constexpr,
    REST: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    CODES: tl.constexpr,
    CAPPED: tl.constexpr,
    SLOPED: tl.constexpr,
    WINDOWED: tl.constexpr,
    CHUNKED: tl.constexpr,
    SINKS: tl.constexpr,
    RANGED: tl.constexpr,
    TREE: tl.constexpr,
    SPANS: tl.constexpr,
    LSE: tl.constexpr,
    EXACT: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    SPAN: tl.constexpr,
):
    """One tile of queries of a row of `at_least` to `at_most` new tokens, over all of its keys, or
    over every so many of their partitions. If EXACT, rows that are not split add up their
    partitions as `_merge` does those of others.

    Of the heads of a group, a program has SHARED. LATENT says that the first VALUE_DIM channels of
    a key are its value; those behind them have a tile of REST, 0 where there are none.
    """
    QUERIES: tl.constexpr = ROWS // SHARED
    DEALS: tl.constexpr = (GROUP + SHARED - 1) // SHARED
    KEY_DIM: tl.constexpr = VALUE_DIM if LATENT else HEAD_DIM
    NUMBER: tl.constexpr = query.dtype.element_ty
    block, deal = tl.program_id(0), tl.program_id(1)
    kv_head = deal // DEALS
    row = _row_of(block, query_starts, num_rows, QUERIES)
    begin = tl.load(query_starts + row)
    count = tl.load(query_starts + row + 1) - begin
    first = (block - begin // QUERIES - row) * QUERIES
    if (first >= count) | (count < at_least) | (count > at_most):
        return
    length = tl.load(lengths + row)
    place = tl.load(places + row)
    split = place >= 0
    earliest = length - count
    nearest = _first_partition(earliest, window, chunk, WINDOWED, CHUNKED, SPAN)
    partitions = tl.where(split, tl.cdiv(length, SPAN), 1)
    mine_from, stride = tl.where(split, nearest, 0) + tl.program_id(2), tl.num_programs(2)
    if mine_from >= partitions:  # There are no keys, and no merge reads it.
        return
    cut = split
    if EXACT:
        cut = place == place
        stride = tl.where(split, stride, 1)

    r, d, channel = tl.arange(0, ROWS), tl.arange(0, DIM), tl.arange(0, VALUES)
    member = deal % DEALS * SHARED + r % SHARED
    token, head = first + r // SHARED, kv_head * GROUP + member
    real = (r // SHARED < QUERIES) & (token < count) & (member < GROUP)
    position = length - count + token
    # Of the tokens of the tile, the first may be at this position, the last in this place. A token
    # of a tree may be as near to the context as the first of them, whatever its own place.
    newest = earliest + first + QUERIES
    if TREE:
        position = earliest + tl.load(depths + begin + token, mask=real, other=0)
        bits = tl.load(ancestors + begin + token, mask=real, other=0)
    else:
        earliest += first
    last = position
    if SPANS:
        last = tl.load(last_keys + begin + token, mask=real, other=0)
        newest = tl.maximum(newest, tl.max(last, 0) + 1)
    from_query = (begin + token).to(tl.int64) * query_stride + head * HEAD_DIM
    inside, kept = d < KEY_DIM, channel < VALUE_DIM
    q = _part(query, from_query[:, None] + d, real[:, None] & inside, 0, NUMBER)
    if REST:
        other = VALUE_DIM + tl.arange(0, REST)
        behind = other < HEAD_DIM
        q_rest = _part(query, from_query[:, None] + other, real[:, None] & behind, 0, NUMBER)
    oldest = tl.full((ROWS,), 0, tl.int32)
    if WINDOWED:
        oldest = tl.maximum(oldest, position - window + 1)
    if CHUNKED:
        oldest = tl.maximum(oldest, position // chunk * chunk)
    slope = tl.full((ROWS,), 0.0, tl.float32)
    if SLOPED:
        slope = tl.load(slopes + head, mask=real, other=0.0)

    if RANGED:
        from_key = tl.load(ranges + row * 2)
    table = page_table + row.to(tl.int64) * table_width
    here = pages + kv_head * head_stride
    newest = tl.minimum(length, newest)
    if EXACT:
        nearest = _first_partition(earliest, window, chunk, WINDOWED, CHUNKED, SPAN)
        mine_from = tl.where(split, mine_from, nearest)
        partitions = tl.where(split, partitions, tl.cdiv(newest, SPAN))
        held_most = tl.full((ROWS,), _HIDDEN, tl.float32)
        held_total = tl.full((ROWS,), 0.0, tl.float32)
        held = tl.full((ROWS, VALUES), 0.0, tl.float32)
    # The grid is bounded, so that a step of short rows launches few programs: each takes every so
    # many partitions, and their numbers do not depend on how many those are.
    for partition in range(mine_from, partitions, stride):
        # The first token of the tile sees the oldest key, its last token the newest.
        given = (window, chunk, ranges, row, partition, cut)
        start, stop = _bounds(earliest, newest, *given, WINDOWED, CHUNKED, RANGED, SPAN)

        most = tl.full((ROWS,), _HIDDEN, tl.float32)
        total = tl.full((ROWS,), 0.0, tl.float32)
        weighted = tl.full((ROWS, VALUES), 0.0, tl.float32)
        for key in range(start // KEYS * KEYS, stop, KEYS):
            n = key + tl.arange(0, KEYS)
            there = n < stop
            page = tl.load(table + n // PAGE_SIZE, mask=there, other=0).to(tl.int64)
            at = page * page_stride + n % PAGE_SIZE * token_stride
            if LATENT:
                v = _part(here, at[:, None] + channel, there[:, None] & kept, 0, NUMBER)
                score = tl.dot(q, tl.trans(v), input_precision="ieee")
                if REST:
                    k = _part(here, at + other[:, None], there & behind[:, None], 0, NUMBER)
                    score = tl.dot(q_rest, k, score, input_precision="ieee")
            else:
                k = _part(here, at + d[:, None], there & inside[:, None], CODES, NUMBER)
                score = tl.dot(q, k, input_precision="ieee")
            score *= scale
            if CODES != 0:
                score *= kv_codes.scale(here + at + HEAD_DIM, there)[None, :]
            if CAPPED:
                score = softcap * (1.0 - 2.0 / (tl.exp(score * (2.0 / softcap)) + 1.0))
            at_key = n[None, :]
            seen = there[None, :]
            if RANGED:
                seen &= at_key >= from_key
            if TREE:
                related, where = _in_tree(n, there, begin, length - count, bits, depths)
                seen &= related
                at_key = where[None, :]
            if SLOPED:
                score += slope[:, None] * (at_key - position[:, None]).to(tl.float32)
            seen &= (at_key <= last[:, None]) & (at_key >= oldest[:, None])
            most, total, fade, weight = _weigh(most, total, tl.where(seen, score, _HIDDEN))
            if CODES != 0:
                weight *= kv_codes.scale(here + value_stride + at + VALUE_DIM, there)[None, :]
            if not LATENT:
                values = here + value_stride
                v = _part(values, at[:, None] + channel, there[:, None] & kept, CODES, NUMBER)
            weighted = tl.dot(
                weight.to(v.dtype), v, weighted * fade[:, None], input_precision="ieee"
            )

        if split:
            # [split token, head, partition]
            mine = ((place + token) * NUM_HEADS + head).to(tl.int64) * num_partitions + partition
            tl.store(states + mine * 2, most, mask=real)
            tl.store(states + mine * 2 + 1, total, mask=real)
            tl.store(sums + mine[:, None] * VALUES + channel[None, :], weighted, mask=real[:, None])
        else:
            if EXACT:
                held_most, fade, share = _shares(held_most, most)
                held = held * fade[:, None] + weighted * share[:, None]
                held_total = held_total * fade + total * share
                # Written after each partition; what the last one writes stays.
                most, total, weighted = held_most, held_total, held
            if SINKS:
                sink = tl.load(sinks + (begin + token) * sinks_stride + head, mask=real, other=0.0)
                most, total, fade = _with_sink(most, total, sink)
                weighted *= fade[:, None]
            target = (begin + token).to(tl.int64) * NUM_HEADS + head
            if LSE:
                tl.store(
                    lse + target, most + tl.log(tl.where(most == _HIDDEN, 1.0, total)), mask=real
                )
            some = real
            if RANGED:  # Nothing seen is nothing, not 0 / 0.
                some &= most != _HIDDEN
            if EXACT:  # A token of the tile may see its first key in a later partition.
                some &= total != 0.0
            result = weighted / tl.where(some, total, 1.0)[:, None]
            tl.store(
                out + target[:, None] * VALUE_DIM + channel[None, :],
                result.to(out.dtype.element_ty),
                mask=real[:, None] & kept[None, :],
            )


@triton.jit(do_not_specialize=["num_partitions"])  # type: ignore[untyped-decorator]
def _merge(  # type: ignore[no-untyped-def]
    sinks,
    query_starts,
    lengths,
    places,
    out,
    lse,
    sums,
    states,
    num_partitions,
    sinks_stride,
    window,
    chunk,
    NUM_HEADS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUES: tl.constexpr,
    WINDOWED: tl.constexpr,
    CHUNKED: tl.constexpr,
    SINKS: tl.constexpr,
    RANGED: tl.constexpr,
    LSE: tl.constexpr,
    SPAN: tl.constexpr,
):
    """The partitions of one head of a row's tokens, in their order."""
    row, head = tl.program_id(0), tl.program_id(1)
    place = tl.load(places + row)
    if place < 0:
        return
    channel = tl.arange(0, VALUES)
    begin = tl.load(query_starts + row)
    count = tl.load(query_starts + row + 1) - begin
    length = tl.load(lengths + row)
    first = _first_partition(length - count, window, chunk, WINDOWED, CHUNKED, SPAN)
    used = tl.cdiv(length, SPAN)
    for token in range(0, count):
        mine = ((place + token) * NUM_HEADS + head).to(tl.int64) * num_partitions + first
        most, total = tl.load(states + mine * 2), tl.load(states + mine * 2 + 1)
        weighted = tl.load(sums + mine * VALUES + channel)
        for partition in range(1, used - first):
            one = tl.load(states + (mine + partition) * 2)
            added = tl.load(states + (mine + partition) * 2 + 1)
            most, fade, share = _shares(most, one)
            more = tl.load(sums + (mine + partition) * VALUES + channel)
            weighted = weighted * fade + more * share
            total = total * fade + added * share
        if SINKS:
            sink = tl.load(sinks + (begin + token) * sinks_stride + head)
            most, total, fade = _with_sink(most, total, sink)
            weighted *= fade
        target = (begin + token).to(tl.int64) * NUM_HEADS + head
        if LSE:
            tl.store(lse + target, most + tl.log(tl.where(most == _HIDDEN, 1.0, total)))
        if RANGED:
            total = tl.where(most == _HIDDEN, 1.0, total)
        result = (weighted / total).to(out.dtype.element_ty)
        tl.store(out + target * VALUE_DIM + channel, result, mask=channel < VALUE_DIM)


def _tiles(
    least: int, large: int, lengths: tuple[int, int, int], exact: bool
) -> list[tuple[int, tuple[int, int]]]:
    """Of each launch the rows of a tile, and the fewest and most new tokens of its rows. With the
    tile of long rows a short one would have the sums of another order: it has a launch of its own,
    so that no row depends on what is beside it.

    Args:
        least, large: rows of a tile of short rows and of long ones.
        lengths: the fewest tokens of a row, the most of a short row, and the most of a row.
    """
    shortest, few_tokens, longest = lengths
    if exact:
        return [(large, (0, longest))]
    launches = []
    if shortest <= few_tokens:
        launches.append((least, (0, few_tokens)))
    if longest > few_tokens:
        launches.append((large, (few_tokens + 1, longest)))
    return launches


def shared(group: int, latent: bool = False) -> int:
    """Query heads of one program, of `group` that share a key head."""
    return -(-group // -(-group // (_MOST_LATENT_HEADS if latent else _MOST_HEADS)))


def few(heads: int) -> int:
    """New tokens up to which a row's keys are cut into partitions: those of the smallest tile, with
    so many `heads` each. It depends on the layer alone, so that a row's neighbours do not decide
    how it is computed."""
    return max(_FEWEST_ROWS, power(heads)) // heads


def _programs(device: torch.device, tiles: int) -> int:
    """Programs of one tile that fill the device beside those of the other tiles."""
    return -(-_PER_MULTIPROCESSOR * _multiprocessors(device) // max(1, tiles))


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _tile(channels: int) -> int:
    """Channels of the tile that has room for so many."""
    return max(16, power(channels))


def attend(
    query: Tensor,
    pages: Tensor,
    *,
    page_table: Tensor,
    lengths: Tensor,
    query_starts: Tensor,
    places: Tensor,
    split_tokens: int,
    partitions: int,
    longest: int,
    scale: float,
    shortest: int = 1,
    exact: bool = False,
    softcap: float | None,
    slopes: Tensor | None,
    window: int | None,
    chunk: int | None,
    sinks: Tensor | None,
    code: int,
    value_dim: int | None = None,
    value_offset: int | None = None,
    latent: bool = False,
    ranges: Tensor | None = None,
    ancestors: Tensor | None = None,
    depths: Tensor | None = None,
    last_keys: Tensor | None = None,
    lse: Tensor | None = None,
) -> Tensor:
    """Attention of a ragged step; the twin is `attention.backends.reference`.

    Args:
        query: [T, num_heads, head_dim], any row stride.
        pages: [num_pages, page_size, 1 if `latent` else 2, num_kv_heads, head_dim], in either
            layout; with a `code` uint8, the last axis `row_width`.
        page_table, lengths, query_starts: see `AttentionBatch`.
        places: int32 [B], the first of a split row's tokens among all that are split, -1 for a
            row that is not.
        split_tokens, partitions: how many tokens are split, into how many partitions at most.
        longest, shortest: most and fewest new tokens of a row.
        exact: a token has the same bits whether its row is short or long. Without it, it has the
            same bits beside any other rows.
        slopes: float32 [num_heads], ALiBi.
        sinks: [num_heads] or [T, num_heads].
        code: `KVCodes.number` of the pages, 0 for plain numbers.
        value_dim: channels of a value, where not those of a key.
        value_offset: how far behind its key a value is, where both are in one plane of the pages.
        latent: the first `value_dim` channels of a key are its value. Then there are no codes.
        ranges: int32 [B, 2], see `AttentionBatch.ranges`.
        ancestors, depths: see `attention.trees.TreeMask`.
        last_keys: int32 [T], see `AttentionBatch.last_keys`.
        lse: float32 [T, num_heads], filled; see `attention.Backend.forward`.

    Returns:
        [T, num_heads * value_dim].
    """
    tokens, num_heads, head_dim = query.shape
    num_kv_heads = pages.shape[3]
    group = num_heads // num_kv_heads
    width = head_dim if value_dim is None else value_dim
    values, rest = _tile(width), head_dim - width if latent else 0
    dim, heads = values if latent else _tile(head_dim), shared(group, latent)
    out = query.new_empty((tokens, num_heads * width))
    sums = query.new_empty((split_tokens, num_heads, partitions, values), dtype=torch.float32)
    states = query.new_empty((split_tokens, num_heads, partitions, 2), dtype=torch.float32)
    sinks = None if sinks is None else sinks.float().contiguous()
    sinks_stride = 0 if sinks is None or sinks.ndim == 1 else num_heads
    least = max(_FEWEST_ROWS, power(heads))
    # What a program holds in registers and in shared memory, whatever the type and the width.
    widest = max(dim, values) * query.element_size()
    narrow = widest <= 256
    large = max(least, _TILE_ROWS if narrow else 32)
    num_rows = len(lengths)
    deals = num_kv_heads * -(-group // heads)
    page, token, plane, head = pages.stride()[:4]
    plane = plane if value_offset is None else value_offset
    given: Any = (query, pages, sinks, slopes, page_table, lengths, query_starts, places)
    given += (ranges, ancestors, depths, last_keys, out, lse, sums, states)
    counts = (num_rows, page_table.shape[1], partitions)
    strides = (query.stride(0), page, token, plane, head, sinks_stride)
    numbers = (scale, softcap or 0.0, window or 0, chunk or 0)
    constants: Any = dict(
        NUM_HEADS=num_heads,
        GROUP=group,
        SHARED=heads,
        HEAD_DIM=head_dim,
        DIM=dim,
        VALUE_DIM=width,
        VALUES=values,
        LATENT=latent,
        REST=_tile(rest) if rest else 0,
        PAGE_SIZE=pages.shape[1],
        CODES=code,
        CAPPED=softcap is not None,
        SLOPED=slopes is not None,
        WINDOWED=window is not None,
        CHUNKED=chunk is not None,
        SINKS=sinks is not None,
        RANGED=ranges is not None,
        TREE=ancestors is not None,
        SPANS=last_keys is not None,
        LSE=lse is not None,
        EXACT=exact,
        KEYS=64 if narrow else 32 if widest <= 1024 else 16,
        SPAN=PARTITION,
        num_warps=4 if max(dim, values) <= 128 and not exact else 8,
        num_stages=2,
    )
    for rows, of_rows in _tiles(least, large, (shortest, few(heads), longest), exact):
        tiles = tokens // (rows // heads) + num_rows
        grid = (tiles, deals, min(max(1, partitions), _programs(query.device, tiles * deals)))
        launch: Any = _attend[grid]
        launch(*given, *counts, *of_rows, *strides, *numbers, ROWS=rows, **constants)
    if split_tokens:
        launch = _merge[num_rows, num_heads]
        launch(
            *(sinks, query_starts, lengths, places, out, lse, sums, states),
            *(partitions, sinks_stride, window or 0, chunk or 0),
            NUM_HEADS=num_heads,
            VALUE_DIM=width,
            VALUES=values,
            WINDOWED=window is not None,
            CHUNKED=chunk is not None,
            SINKS=sinks is not None,
            RANGED=ranges is not None,
            LSE=lse is not None,
            SPAN=PARTITION,
            num_warps=1,
        )
    return out
