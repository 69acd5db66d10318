"""The kernels: a tile of queries over its keys, and the merge of partitions."""

from __future__ import annotations

import triton
import triton.language as tl

from baton_worker.kernels.triton import kv_codes
from baton_worker.kernels.triton.attention import bounds, softmax

_COUNTS = ("num_rows", "table_width", "num_partitions", "at_least", "at_most")
"""Arguments that change from step to step."""
_HIDDEN = softmax.HIDDEN


@triton.jit  # type: ignore[untyped-decorator]
def _part(at, where, mask, CODES: tl.constexpr, NUMBER: tl.constexpr):  # type: ignore[no-untyped-def]
    """A tile of numbers or CODES at `at` + `where`, in NUMBER; a code without its scale."""
    x = tl.load(at + where, mask=mask, other=0)
    if CODES != 0:
        x = kv_codes.number(x, CODES)
    return x.to(NUMBER)


@triton.jit  # type: ignore[untyped-decorator]
def _keep(states, sums, mine, most, total, weighted, real, VALUES: tl.constexpr):  # type: ignore[no-untyped-def]
    """Store a partition of split rows, whose place is `mine`, for the merge."""
    channel = tl.arange(0, VALUES)
    tl.store(states + mine * 2, most, mask=real)
    tl.store(states + mine * 2 + 1, total, mask=real)
    tl.store(sums + mine[:, None] * VALUES + channel[None, :], weighted, mask=real[:, None])


@triton.jit  # type: ignore[untyped-decorator]
def _write(  # type: ignore[no-untyped-def]
    out,
    lse,
    target,
    most,
    total,
    weighted,
    real,
    VALUE_DIM: tl.constexpr,
    VALUES: tl.constexpr,
    RANGED: tl.constexpr,
    LSE: tl.constexpr,
    EXACT: tl.constexpr,
):
    """Store the results of whole rows at `target`, and the logarithms of their sums of weights."""
    channel = tl.arange(0, VALUES)
    if LSE:
        tl.store(lse + target, most + tl.log(tl.where(most == _HIDDEN, 1.0, total)), mask=real)
    some = real
    if RANGED:  # Nothing seen is nothing, not 0 / 0.
        some &= most != _HIDDEN
    if EXACT:  # A token of the tile may see its first key in a later partition.
        some &= total != 0.0
    result = weighted / tl.where(some, total, 1.0)[:, None]
    tl.store(
        out + target[:, None] * VALUE_DIM + channel[None, :],
        result.to(out.dtype.element_ty),
        mask=real[:, None] & (channel < VALUE_DIM)[None, :],
    )


@triton.jit
def _capped(score, softcap):  # type: ignore[no-untyped-def]
    """softcap * tanh(score / softcap)."""
    return softcap * (1.0 - 2.0 / (tl.exp(score * (2.0 / softcap)) + 1.0))


@triton.jit  # type: ignore[untyped-decorator]
def _weigh_unmasked(  # type: ignore[no-untyped-def]
    q,
    here,
    table,
    start,
    stop,
    most,
    total,
    weighted,
    page_stride,
    token_stride,
    value_stride,
    scale,
    softcap,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUES: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    KEYS: tl.constexpr,
    CODES: tl.constexpr,
    CAPPED: tl.constexpr,
):
    """The sums of a tile with the keys `start` ... `stop` - 1 more, whole blocks that every query
    sees."""
    NUMBER: tl.constexpr = q.dtype
    WORDS: tl.constexpr = HEAD_DIM % 4 == 0 and VALUE_DIM % 4 == 0
    d, channel, values = tl.arange(0, DIM), tl.arange(0, VALUES), here + value_stride
    inside, has_value = (d < HEAD_DIM)[:, None], channel < VALUE_DIM
    for key in range(start, stop, KEYS):
        n = key + tl.arange(0, KEYS)
        page = tl.load(table + n // PAGE_SIZE).to(tl.int64)
        at = page * page_stride + n % PAGE_SIZE * token_stride
        k = _part(here, at + d[:, None], inside, CODES, NUMBER)
        score = tl.dot(q, k, input_precision="ieee") * scale
        if CODES != 0:
            score *= kv_codes.scale(here + at + HEAD_DIM, n >= 0, WORDS)[None, :]
        if CAPPED:
            score = _capped(score, softcap)
        most, total, fade, weight = softmax.weigh(most, total, score)
        if CODES != 0:
            weight *= kv_codes.scale(values + at + VALUE_DIM, n >= 0, WORDS)[None, :]
        v = _part(values, at[:, None] + channel, has_value, CODES, NUMBER)
        weighted = tl.dot(weight.to(v.dtype), v, weighted * fade[:, None], input_precision="ieee")
    return most, total, weighted


@triton.jit(do_not_specialize=_COUNTS)  # type: ignore[untyped-decorator]
def attend(  # type: ignore[no-untyped-def]
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
    MOST: tl.constexpr,
    UNMASKED: tl.constexpr,
):
    """One tile of queries of a row of `at_least` to `at_most` new tokens, over all of its keys, or
    over every so many of their partitions. If EXACT, rows that are not split add up their
    partitions as `merge` does those of others.

    Of the heads of a group, a program has SHARED. With LATENT the first VALUE_DIM channels of a key
    are its value; the others have a tile of REST channels, 0 if there are none. With UNMASKED a
    query sees every key up to its own, so that only the last blocks need masks.
    """
    QUERIES: tl.constexpr = ROWS // SHARED
    DEALS: tl.constexpr = (GROUP + SHARED - 1) // SHARED
    KEY_DIM: tl.constexpr = VALUE_DIM if LATENT else HEAD_DIM
    NUMBER: tl.constexpr = query.dtype.element_ty
    WORDS: tl.constexpr = HEAD_DIM % 4 == 0 and VALUE_DIM % 4 == 0
    block, deal = tl.program_id(0), tl.program_id(1)
    kv_head = deal // DEALS
    row = bounds.row_of(block, query_starts, num_rows, QUERIES)
    begin = tl.load(query_starts + row)
    count = tl.load(query_starts + row + 1) - begin
    first = (block - begin // QUERIES - row) * QUERIES
    if (first >= count) | (count < at_least) | (count > at_most):
        return
    length = tl.load(lengths + row)
    place = tl.load(places + row)
    split = place >= 0
    earliest = length - count
    oldest = bounds.oldest(earliest, window, chunk, WINDOWED, CHUNKED)
    span = bounds.partition_keys(oldest, length, SPAN, MOST)
    nearest = oldest // span
    partitions = tl.where(split, tl.cdiv(length, span), 1)
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
    inside, has_value = d < KEY_DIM, channel < VALUE_DIM
    q = _part(query, from_query[:, None] + d, real[:, None] & inside, 0, NUMBER)
    if REST:
        other = VALUE_DIM + tl.arange(0, REST)
        behind = other < HEAD_DIM
        q_rest = _part(query, from_query[:, None] + other, real[:, None] & behind, 0, NUMBER)
    farthest = tl.full((ROWS,), 0, tl.int32)
    if WINDOWED:
        farthest = tl.maximum(farthest, position - window + 1)
    if CHUNKED:
        farthest = tl.maximum(farthest, position // chunk * chunk)
    slope = tl.full((ROWS,), 0.0, tl.float32)
    if SLOPED:
        slope = tl.load(slopes + head, mask=real, other=0.0)

    if RANGED:
        from_key = tl.load(ranges + row * 2)
    table = page_table + row.to(tl.int64) * table_width
    here = pages + kv_head * head_stride
    newest = tl.minimum(length, newest)
    if EXACT:
        reached = bounds.oldest(earliest, window, chunk, WINDOWED, CHUNKED) // span
        mine_from = tl.where(split, mine_from, reached)
        partitions = tl.where(split, partitions, tl.cdiv(newest, span))
        held_most = tl.full((ROWS,), _HIDDEN, tl.float32)
        held_total = tl.full((ROWS,), 0.0, tl.float32)
        held = tl.full((ROWS, VALUES), 0.0, tl.float32)
    # The grid is bounded, so that a step of short rows launches few programs: each takes every so
    # many partitions, and their numbers do not depend on how many those are.
    for partition in range(mine_from, partitions, stride):
        # The first token of the tile sees the oldest key, its last token the newest.
        limits = (window, chunk, ranges, row, partition, cut, span)
        start, stop = bounds.key_bounds(earliest, newest, *limits, WINDOWED, CHUNKED, RANGED)

        most = tl.full((ROWS,), _HIDDEN, tl.float32)
        total = tl.full((ROWS,), 0.0, tl.float32)
        weighted = tl.full((ROWS, VALUES), 0.0, tl.float32)
        # Blocks of which every query sees every key have no masks. They come first, and a masked
        # block of such keys has the same sums.
        whole = start // KEYS * KEYS
        if UNMASKED:
            first_key, whole = whole, tl.minimum(earliest + 1, stop) // KEYS * KEYS
            whole = tl.maximum(first_key, whole)
            tile = (q, here, table, first_key, whole, most, total, weighted)
            steps = (page_stride, token_stride, value_stride, scale, softcap)
            most, total, weighted = _weigh_unmasked(
                *tile, *steps, HEAD_DIM, DIM, VALUE_DIM, VALUES, PAGE_SIZE, KEYS, CODES, CAPPED
            )
        for key in range(whole, stop, KEYS):
            n = key + tl.arange(0, KEYS)
            there = n < stop
            page = tl.load(table + n // PAGE_SIZE, mask=there, other=0).to(tl.int64)
            at = page * page_stride + n % PAGE_SIZE * token_stride
            if LATENT:
                v = _part(here, at[:, None] + channel, there[:, None] & has_value, 0, NUMBER)
                score = tl.dot(q, tl.trans(v), input_precision="ieee")
                if REST:
                    k = _part(here, at + other[:, None], there & behind[:, None], 0, NUMBER)
                    score = tl.dot(q_rest, k, score, input_precision="ieee")
            else:
                k = _part(here, at + d[:, None], there & inside[:, None], CODES, NUMBER)
                score = tl.dot(q, k, input_precision="ieee")
            score *= scale
            if CODES != 0:
                score *= kv_codes.scale(here + at + HEAD_DIM, there, WORDS)[None, :]
            if CAPPED:
                score = _capped(score, softcap)
            at_key = n[None, :]
            visible = there[None, :]
            if RANGED:
                visible &= at_key >= from_key
            if TREE:
                related, where = bounds.in_tree(n, there, begin, length - count, bits, depths)
                visible &= related
                at_key = where[None, :]
            if SLOPED:
                score += slope[:, None] * (at_key - position[:, None]).to(tl.float32)
            visible &= (at_key <= last[:, None]) & (at_key >= farthest[:, None])
            most, total, fade, weight = softmax.weigh(
                most, total, tl.where(visible, score, _HIDDEN)
            )
            if CODES != 0:
                behind_value = here + value_stride + at + VALUE_DIM
                weight *= kv_codes.scale(behind_value, there, WORDS)[None, :]
            if not LATENT:
                values = here + value_stride
                v = _part(values, at[:, None] + channel, there[:, None] & has_value, CODES, NUMBER)
            weighted = tl.dot(
                weight.to(v.dtype), v, weighted * fade[:, None], input_precision="ieee"
            )

        if split:
            first_part = ((place + token) * NUM_HEADS + head).to(tl.int64) * num_partitions
            place_of_part = first_part + partition - nearest
            _keep(states, sums, place_of_part, most, total, weighted, real, VALUES)
        else:
            if EXACT:
                held_most, fade, share = softmax.shares(held_most, most)
                held = held * fade[:, None] + weighted * share[:, None]
                held_total = held_total * fade + total * share
                # Written after each partition; what the last one writes stays.
                most, total, weighted = held_most, held_total, held
            if SINKS:
                sink = tl.load(sinks + (begin + token) * sinks_stride + head, mask=real, other=0.0)
                most, total, fade = softmax.with_sink(most, total, sink)
                weighted *= fade[:, None]
            target = (begin + token).to(tl.int64) * NUM_HEADS + head
            result = (most, total, weighted, real)
            _write(out, lse, target, *result, VALUE_DIM, VALUES, RANGED, LSE, EXACT)


@triton.jit(do_not_specialize=["num_partitions"])  # type: ignore[untyped-decorator]
def merge(  # type: ignore[no-untyped-def]
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
    MOST: tl.constexpr,
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
    oldest = bounds.oldest(length - count, window, chunk, WINDOWED, CHUNKED)
    span = bounds.partition_keys(oldest, length, SPAN, MOST)
    used = tl.cdiv(length, span) - oldest // span
    for token in range(0, count):
        mine = ((place + token) * NUM_HEADS + head).to(tl.int64) * num_partitions
        most, total = tl.load(states + mine * 2), tl.load(states + mine * 2 + 1)
        weighted = tl.load(sums + mine * VALUES + channel)
        for partition in range(1, used):
            one = tl.load(states + (mine + partition) * 2)
            added = tl.load(states + (mine + partition) * 2 + 1)
            most, fade, share = softmax.shares(most, one)
            more = tl.load(sums + (mine + partition) * VALUES + channel)
            weighted = weighted * fade + more * share
            total = total * fade + added * share
        if SINKS:
            sink = tl.load(sinks + (begin + token) * sinks_stride + head)
            most, total, fade = softmax.with_sink(most, total, sink)
            weighted *= fade
        target = (begin + token).to(tl.int64) * NUM_HEADS + head
        if LSE:
            tl.store(lse + target, most + tl.log(tl.where(most == _HIDDEN, 1.0, total)))
        if RANGED:
            total = tl.where(most == _HIDDEN, 1.0, total)
        result = (weighted / total).to(out.dtype.element_ty)
        tl.store(out + target * VALUE_DIM + channel, result, mask=channel < VALUE_DIM)
