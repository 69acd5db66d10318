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
def _store_partition(states, sums, at, most, total, weighted, real, VALUES: tl.constexpr):  # type: ignore[no-untyped-def]
    """Store a partition of split rows, at their places `at`, for the merge."""
    channel = tl.arange(0, VALUES)
    tl.store(states + at * 2, most, mask=real)
    tl.store(states + at * 2 + 1, total, mask=real)
    tl.store(sums + at[:, None] * VALUES + channel[None, :], weighted, mask=real[:, None])


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
    head_pages,
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
    d, channel, values = tl.arange(0, DIM), tl.arange(0, VALUES), head_pages + value_stride
    inside, has_value = (d < HEAD_DIM)[:, None], channel < VALUE_DIM
    for key in range(start, stop, KEYS):
        n = key + tl.arange(0, KEYS)
        page = tl.load(table + n // PAGE_SIZE).to(tl.int64)
        at = page * page_stride + n % PAGE_SIZE * token_stride
        k = _part(head_pages, at + d[:, None], inside, CODES, NUMBER)
        score = tl.dot(q, k, input_precision="ieee") * scale
        if CODES != 0:
            score *= kv_codes.scale(head_pages + at + HEAD_DIM, n >= 0, WORDS)[None, :]
        if CAPPED:
            score = _capped(score, softcap)
        most, total, fade, weight = softmax.weigh(most, total, score)
        if CODES != 0:
            weight *= kv_codes.scale(values + at + VALUE_DIM, n >= 0, WORDS)[None, :]
        v = _part(values, at[:, None] + channel, has_value, CODES, NUMBER)
        weighted = tl.dot(weight.to(v.dtype), v, weighted * fade[:, None], input_precision="ieee")
    return most, total, weighted


@triton.jit  # type: ignore[untyped-decorator]
def _latent_scores(  # type: ignore[no-untyped-def]
    q,
    q_rest,
    head_pages,
    at,
    there,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUES: tl.constexpr,
    REST: tl.constexpr,
):
    """Scores of a block of latents, without their scale, and the latents, which are its values."""
    NUMBER: tl.constexpr = q.dtype
    channel = tl.arange(0, VALUES)
    has_value = channel < VALUE_DIM
    v = _part(head_pages, at[:, None] + channel, there[:, None] & has_value, 0, NUMBER)
    score = tl.dot(q, tl.trans(v), input_precision="ieee")
    if REST:
        other = VALUE_DIM + tl.arange(0, REST)
        has_rest = other < HEAD_DIM
        k = _part(head_pages, at + other[:, None], there & has_rest[:, None], 0, NUMBER)
        score = tl.dot(q_rest, k, score, input_precision="ieee")
    return score, v


@triton.jit  # type: ignore[untyped-decorator]
def _masked(  # type: ignore[no-untyped-def]
    score,
    n,
    there,
    masks,
    SLOPED: tl.constexpr,
    RANGED: tl.constexpr,
    TREE: tl.constexpr,
):
    """Scores of the keys `n` with the biases of ALiBi, HIDDEN where a query does not see a key;
    `masks` are those of `_weigh_masked`."""
    position, last, farthest, slope, bits, from_key, begin, context, depths = masks
    at_key = n[None, :]
    visible = there[None, :]
    if RANGED:
        visible &= at_key >= from_key
    if TREE:
        related, where = bounds.in_tree(n, there, begin, context, bits, depths)
        visible &= related
        at_key = where[None, :]
    if SLOPED:
        score += slope[:, None] * (at_key - position[:, None]).to(tl.float32)
    visible &= (at_key <= last[:, None]) & (at_key >= farthest[:, None])
    return tl.where(visible, score, _HIDDEN)


@triton.jit  # type: ignore[untyped-decorator]
def _weigh_masked(  # type: ignore[no-untyped-def]
    q,
    q_rest,
    head_pages,
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
    masks,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUES: tl.constexpr,
    LATENT: tl.constexpr,
    REST: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    KEYS: tl.constexpr,
    CODES: tl.constexpr,
    CAPPED: tl.constexpr,
    SLOPED: tl.constexpr,
    RANGED: tl.constexpr,
    TREE: tl.constexpr,
):
    """The sums of a tile with those of the keys `start` ... `stop` - 1 more that its queries see.

    Args:
        masks: of each query its position, the last and the first key that it sees, the slope of its
            head and its ancestors in a tree; the first key of the row, its first new token, the
            number of tokens before that, and the depths of tokens in trees.
    """
    NUMBER: tl.constexpr = q.dtype
    WORDS: tl.constexpr = HEAD_DIM % 4 == 0 and VALUE_DIM % 4 == 0
    d, channel = tl.arange(0, DIM), tl.arange(0, VALUES)
    inside, has_value = d < HEAD_DIM, channel < VALUE_DIM
    for key in range(start, stop, KEYS):
        n = key + tl.arange(0, KEYS)
        there = n < stop
        page = tl.load(table + n // PAGE_SIZE, mask=there, other=0).to(tl.int64)
        at = page * page_stride + n % PAGE_SIZE * token_stride
        if LATENT:
            score, v = _latent_scores(
                q, q_rest, head_pages, at, there, HEAD_DIM, VALUE_DIM, VALUES, REST
            )
        else:
            k = _part(head_pages, at + d[:, None], there & inside[:, None], CODES, NUMBER)
            score = tl.dot(q, k, input_precision="ieee")
        score *= scale
        if CODES != 0:
            score *= kv_codes.scale(head_pages + at + HEAD_DIM, there, WORDS)[None, :]
        if CAPPED:
            score = _capped(score, softcap)
        score = _masked(score, n, there, masks, SLOPED, RANGED, TREE)
        most, total, fade, weight = softmax.weigh(most, total, score)
        if CODES != 0:
            behind_value = head_pages + value_stride + at + VALUE_DIM
            weight *= kv_codes.scale(behind_value, there, WORDS)[None, :]
        if not LATENT:
            values = head_pages + value_stride
            v = _part(values, at[:, None] + channel, there[:, None] & has_value, CODES, NUMBER)
        weighted = tl.dot(weight.to(v.dtype), v, weighted * fade[:, None], input_precision="ieee")
    return most, total, weighted


@triton.jit  # type: ignore[untyped-decorator]
def _queries(  # type: ignore[no-untyped-def]
    query,
    at,
    real,
    KEY_DIM: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    REST: tl.constexpr,
):
    """A tile of queries, and its channels behind those of values in latents."""
    NUMBER: tl.constexpr = query.dtype.element_ty
    d = tl.arange(0, DIM)
    q = _part(query, at[:, None] + d, real[:, None] & (d < KEY_DIM), 0, NUMBER)
    q_rest = q
    if REST:
        other = KEY_DIM + tl.arange(0, REST)
        q_rest = _part(query, at[:, None] + other, real[:, None] & (other < HEAD_DIM), 0, NUMBER)
    return q, q_rest


@triton.jit  # type: ignore[untyped-decorator]
def _members(  # type: ignore[no-untyped-def]
    deal,
    first,
    count,
    ROWS: tl.constexpr,
    QUERIES: tl.constexpr,
    SHARED: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Of each row of a tile the new token and the query head, and whether both exist."""
    DEALS: tl.constexpr = (GROUP + SHARED - 1) // SHARED
    r = tl.arange(0, ROWS)
    member = deal % DEALS * SHARED + r % SHARED
    token, head = first + r // SHARED, deal // DEALS * GROUP + member
    return token, head, (r // SHARED < QUERIES) & (token < count) & (member < GROUP)


@triton.jit  # type: ignore[untyped-decorator]
def _farthest(  # type: ignore[no-untyped-def]
    position,
    window,
    chunk,
    ROWS: tl.constexpr,
    WINDOWED: tl.constexpr,
    CHUNKED: tl.constexpr,
):
    """The first key that each query may see."""
    farthest = tl.full((ROWS,), 0, tl.int32)
    if WINDOWED:
        farthest = tl.maximum(farthest, position - window + 1)
    if CHUNKED:
        farthest = tl.maximum(farthest, position // chunk * chunk)
    return farthest


@triton.jit  # type: ignore[untyped-decorator]
def _row_partitions(  # type: ignore[no-untyped-def]
    context,
    length,
    split,
    window,
    chunk,
    WINDOWED: tl.constexpr,
    CHUNKED: tl.constexpr,
    SPAN: tl.constexpr,
    MOST: tl.constexpr,
):
    """Keys of a partition, the first partition of a row that is split, this program's first one,
    and the end of them."""
    oldest = bounds.oldest(context, window, chunk, WINDOWED, CHUNKED)
    span = bounds.partition_keys(oldest, length, SPAN, MOST)
    nearest = oldest // span
    stop = tl.where(split, tl.cdiv(length, span), 1)
    return span, nearest, tl.where(split, nearest, 0) + tl.program_id(2), stop


@triton.jit  # type: ignore[untyped-decorator]
def _store_result(  # type: ignore[no-untyped-def]
    out,
    lse,
    sinks,
    sinks_stride,
    token,
    head,
    most,
    total,
    weighted,
    real,
    NUM_HEADS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUES: tl.constexpr,
    SINKS: tl.constexpr,
    RANGED: tl.constexpr,
    LSE: tl.constexpr,
    EXACT: tl.constexpr,
):
    """Store the results of a tile whose sums are complete but for the sinks."""
    if SINKS:
        sink = tl.load(sinks + token * sinks_stride + head, mask=real, other=0.0)
        most, total, fade = softmax.with_sink(most, total, sink)
        weighted *= fade[:, None]
    target = token.to(tl.int64) * NUM_HEADS + head
    sums = (most, total, weighted, real)
    _write(out, lse, target, *sums, VALUE_DIM, VALUES, RANGED, LSE, EXACT)


@triton.jit  # type: ignore[untyped-decorator]
def _no_sums(ROWS: tl.constexpr, VALUES: tl.constexpr):  # type: ignore[no-untyped-def]
    """Sums of a tile that has seen no key."""
    most = tl.full((ROWS,), _HIDDEN, tl.float32)
    total = tl.full((ROWS,), 0.0, tl.float32)
    return most, total, tl.full((ROWS, VALUES), 0.0, tl.float32)


@triton.jit(do_not_specialize=_COUNTS)  # type: ignore[untyped-decorator]
def attend(  # type: ignore[no-untyped-def]
    query,
    pages,
    sinks,
    slopes,
    page_table,
    lengths,
    query_starts,
    split_starts,
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
    block, deal = tl.program_id(0), tl.program_id(1)
    row = bounds.row_of(block, query_starts, num_rows, QUERIES)
    begin = tl.load(query_starts + row)
    count = tl.load(query_starts + row + 1) - begin
    first = (block - begin // QUERIES - row) * QUERIES
    if (first >= count) | (count < at_least) | (count > at_most):
        return
    length = tl.load(lengths + row)
    place = tl.load(split_starts + row)
    split = place >= 0
    context = length - count
    earliest = context
    span, nearest, mine_from, partitions = _row_partitions(
        context, length, split, window, chunk, WINDOWED, CHUNKED, SPAN, MOST
    )
    stride = tl.num_programs(2)
    if mine_from >= partitions:  # There are no keys, and no merge reads it.
        return
    cut = split
    if EXACT:
        cut = place == place
        stride = tl.where(split, stride, 1)

    token, head, real = _members(deal, first, count, ROWS, QUERIES, SHARED, GROUP)
    position = context + token
    # Of the tokens of the tile, the first may be at this position, the last in this place. A token
    # of a tree may be as near to the context as the first of them, whatever its own place.
    newest = earliest + first + QUERIES
    # A mask that a launch does not have is not read.
    bits = position
    if TREE:
        position = earliest + tl.load(depths + begin + token, mask=real, other=0)
        bits = tl.load(ancestors + begin + token, mask=real, other=0)
    else:
        earliest += first
    last = position
    if SPANS:
        last = tl.load(last_keys + begin + token, mask=real, other=0)
        newest = tl.maximum(newest, tl.max(last, 0) + 1)
    at = (begin + token).to(tl.int64) * query_stride + head * HEAD_DIM
    q, q_rest = _queries(query, at, real, KEY_DIM, HEAD_DIM, DIM, REST)
    farthest = _farthest(position, window, chunk, ROWS, WINDOWED, CHUNKED)
    slope = tl.full((ROWS,), 0.0, tl.float32)
    if SLOPED:
        slope = tl.load(slopes + head, mask=real, other=0.0)
    from_key = 0
    if RANGED:
        from_key = tl.load(ranges + row * 2)
    masks = (position, last, farthest, slope, bits, from_key, begin, context, depths)
    table = page_table + row.to(tl.int64) * table_width
    head_pages = pages + deal // DEALS * head_stride
    newest = tl.minimum(length, newest)
    if EXACT:
        reached = bounds.oldest(earliest, window, chunk, WINDOWED, CHUNKED) // span
        mine_from = tl.where(split, mine_from, reached)
        partitions = tl.where(split, partitions, tl.cdiv(newest, span))
        held_most, held_total, held = _no_sums(ROWS, VALUES)
    # The grid is bounded, so that a step of short rows launches few programs: each takes every so
    # many partitions, and their numbers do not depend on how many those are.
    for partition in range(mine_from, partitions, stride):
        # The first token of the tile sees the oldest key, its last token the newest.
        limits = (window, chunk, ranges, row, partition, cut, span)
        start, stop = bounds.key_bounds(earliest, newest, *limits, WINDOWED, CHUNKED, RANGED)
        most, total, weighted = _no_sums(ROWS, VALUES)
        strides = (page_stride, token_stride, value_stride, scale, softcap)
        # Blocks of which every query sees every key have no masks. They come first, and a masked
        # block of such keys has the same sums.
        masked_from = start // KEYS * KEYS
        if UNMASKED:
            first_key, masked_from = masked_from, tl.minimum(earliest + 1, stop) // KEYS * KEYS
            masked_from = tl.maximum(first_key, masked_from)
            tile = (q, head_pages, table, first_key, masked_from, most, total, weighted)
            most, total, weighted = _weigh_unmasked(
                *tile, *strides, HEAD_DIM, DIM, VALUE_DIM, VALUES, PAGE_SIZE, KEYS, CODES, CAPPED
            )
        most, total, weighted = _weigh_masked(
            *(q, q_rest, head_pages, table, masked_from, stop, most, total, weighted),
            *strides,
            *(masks, HEAD_DIM, DIM, VALUE_DIM, VALUES, LATENT, REST, PAGE_SIZE, KEYS, CODES),
            *(CAPPED, SLOPED, RANGED, TREE),
        )
        if split:
            first_part = ((place + token) * NUM_HEADS + head).to(tl.int64) * num_partitions
            place_of_part = first_part + partition - nearest
            _store_partition(states, sums, place_of_part, most, total, weighted, real, VALUES)
        else:
            if EXACT:
                held_most, fade, share = softmax.shares(held_most, most)
                held = held * fade[:, None] + weighted * share[:, None]
                held_total = held_total * fade + total * share
                # Written after each partition; what the last one writes stays.
                most, total, weighted = held_most, held_total, held
            _store_result(
                *(out, lse, sinks, sinks_stride, begin + token, head),
                *(most, total, weighted, real, NUM_HEADS, VALUE_DIM, VALUES),
                *(SINKS, RANGED, LSE, EXACT),
            )


@triton.jit(do_not_specialize=["num_partitions"])  # type: ignore[untyped-decorator]
def merge(  # type: ignore[no-untyped-def]
    sinks,
    query_starts,
    lengths,
    split_starts,
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
    place = tl.load(split_starts + row)
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
