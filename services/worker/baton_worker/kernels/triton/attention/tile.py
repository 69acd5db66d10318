"""The kernels: a tile of queries over its keys, and the merge of partitions."""

from __future__ import annotations

import triton
import triton.language as tl

from baton_worker.kernels.triton import kv_codes
from baton_worker.kernels.triton.attention import bounds, softmax

_COUNTS = ("num_rows", "table_width", "num_partitions", "at_least", "at_most")
"""Arguments that change from step to step."""
_HIDDEN = softmax.HIDDEN


@triton.jit
def _part(base, offset, mask, CODES: tl.constexpr, NUMBER: tl.constexpr):
    """A tile of numbers or CODES at `base` + `offset`, in NUMBER; a code without its scale."""
    values = tl.load(base + offset, mask=mask, other=0)
    if CODES != 0:
        values = kv_codes.number(values, CODES)
    return values.to(NUMBER)


@triton.jit
def _store_partition(
    states, sums, places, maximum, total, weighted, is_query, VALUES: tl.constexpr
):
    """Store a partition of split rows, at their `places`, for the merge."""
    channel = tl.arange(0, VALUES)
    tl.store(states + places * 2, maximum, mask=is_query)
    tl.store(states + places * 2 + 1, total, mask=is_query)
    tl.store(sums + places[:, None] * VALUES + channel[None, :], weighted, mask=is_query[:, None])


@triton.jit
def _write(
    out,
    lse,
    target,
    maximum,
    total,
    weighted,
    is_query,
    VALUE_DIM: tl.constexpr,
    VALUES: tl.constexpr,
    RANGED: tl.constexpr,
    LSE: tl.constexpr,
    EXACT: tl.constexpr,
):
    """Store the results of whole rows at `target`, and the logarithms of their sums of weights."""
    channel = tl.arange(0, VALUES)
    if LSE:
        tl.store(
            lse + target, maximum + tl.log(tl.where(maximum == _HIDDEN, 1.0, total)), mask=is_query
        )
    has_result = is_query
    if RANGED:  # Nothing seen is nothing, not 0 / 0.
        has_result &= maximum != _HIDDEN
    if EXACT:  # A token of the tile may see its first key in a later partition.
        has_result &= total != 0.0
    result = weighted / tl.where(has_result, total, 1.0)[:, None]
    tl.store(
        out + target[:, None] * VALUE_DIM + channel[None, :],
        result.to(out.dtype.element_ty),
        mask=is_query[:, None] & (channel < VALUE_DIM)[None, :],
    )


@triton.jit
def _capped(score, softcap):
    """softcap * tanh(score / softcap)."""
    return softcap * (1.0 - 2.0 / (tl.exp(score * (2.0 / softcap)) + 1.0))


@triton.jit
def _weigh_unmasked(
    q,
    head_pages,
    table,
    start,
    stop,
    sums,
    strides,
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
    """The `sums` of a tile with the keys `start` ... `stop` - 1 more, whole blocks that every query
    sees."""
    (maximum, total, weighted), (page_stride, token_stride, value_stride) = sums, strides
    NUMBER: tl.constexpr = q.dtype
    WORDS: tl.constexpr = HEAD_DIM % 4 == 0 and VALUE_DIM % 4 == 0
    key_channel, channel = tl.arange(0, DIM), tl.arange(0, VALUES)
    values = head_pages + value_stride
    has_channel, has_value = (key_channel < HEAD_DIM)[:, None], channel < VALUE_DIM
    for first_key in range(start, stop, KEYS):
        keys = first_key + tl.arange(0, KEYS)
        page = tl.load(table + keys // PAGE_SIZE).to(tl.int64)
        key_offset = page * page_stride + keys % PAGE_SIZE * token_stride
        k = _part(head_pages, key_offset + key_channel[:, None], has_channel, CODES, NUMBER)
        score = tl.dot(q, k, input_precision="ieee") * scale
        if CODES != 0:
            score *= kv_codes.scale(head_pages + key_offset + HEAD_DIM, keys >= 0, WORDS)[None, :]
        if CAPPED:
            score = _capped(score, softcap)
        maximum, total, fade, weight = softmax.weigh(maximum, total, score)
        if CODES != 0:
            weight *= kv_codes.scale(values + key_offset + VALUE_DIM, keys >= 0, WORDS)[None, :]
        v = _part(values, key_offset[:, None] + channel, has_value, CODES, NUMBER)
        weighted = tl.dot(weight.to(v.dtype), v, weighted * fade[:, None], input_precision="ieee")
    return maximum, total, weighted


@triton.jit
def _latent_scores(
    q,
    q_rest,
    head_pages,
    key_offset,
    is_key,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUES: tl.constexpr,
    REST: tl.constexpr,
):
    """Scores of a block of latents, without their scale, and the latents, which are its values."""
    NUMBER: tl.constexpr = q.dtype
    channel = tl.arange(0, VALUES)
    has_value = channel < VALUE_DIM
    inside = is_key[:, None] & has_value
    latents = _part(head_pages, key_offset[:, None] + channel, inside, 0, NUMBER)
    score = tl.dot(q, tl.trans(latents), input_precision="ieee")
    if REST:
        rest_channel = VALUE_DIM + tl.arange(0, REST)
        has_rest = rest_channel < HEAD_DIM
        inside = is_key & has_rest[:, None]
        rest_of_keys = _part(head_pages, key_offset + rest_channel[:, None], inside, 0, NUMBER)
        score = tl.dot(q_rest, rest_of_keys, score, input_precision="ieee")
    return score, latents


@triton.jit
def _masked(
    score,
    keys,
    is_key,
    masks,
    SLOPED: tl.constexpr,
    RANGED: tl.constexpr,
    TREE: tl.constexpr,
):
    """Scores of the `keys` with the biases of ALiBi, HIDDEN where a query does not see a key;
    `masks` are those of `_weigh_masked`."""
    position, last, farthest, slope, ancestor_bits, from_key, begin, context, depths = masks
    key_position = keys[None, :]
    visible = is_key[None, :]
    if RANGED:
        visible &= key_position >= from_key
    if TREE:
        is_ancestor, tree_position = bounds.in_tree(
            keys, is_key, begin, context, ancestor_bits, depths
        )
        visible &= is_ancestor
        key_position = tree_position[None, :]
    if SLOPED:
        score += slope[:, None] * (key_position - position[:, None]).to(tl.float32)
    visible &= (key_position <= last[:, None]) & (key_position >= farthest[:, None])
    return tl.where(visible, score, _HIDDEN)


@triton.jit
def _weigh_masked(
    q,
    q_rest,
    head_pages,
    table,
    start,
    stop,
    sums,
    strides,
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
    """The `sums` of a tile with those of the keys `start` ... `stop` - 1 more that its queries see.

    Args:
        strides: of pages, of tokens in a page, and from a key to its value.
        masks: of each query its position, the last and the first key that it sees, the slope of its
            head and its ancestors in a tree; the first key of the row, its first new token, the
            number of tokens before that, and the depths of tokens in trees.
    """
    (maximum, total, weighted), (page_stride, token_stride, value_stride) = sums, strides
    NUMBER: tl.constexpr = q.dtype
    WORDS: tl.constexpr = HEAD_DIM % 4 == 0 and VALUE_DIM % 4 == 0
    key_channel, channel = tl.arange(0, DIM), tl.arange(0, VALUES)
    has_channel, has_value = key_channel < HEAD_DIM, channel < VALUE_DIM
    for first_key in range(start, stop, KEYS):
        keys = first_key + tl.arange(0, KEYS)
        is_key = keys < stop
        page = tl.load(table + keys // PAGE_SIZE, mask=is_key, other=0).to(tl.int64)
        key_offset = page * page_stride + keys % PAGE_SIZE * token_stride
        if LATENT:
            score, v = _latent_scores(
                q, q_rest, head_pages, key_offset, is_key, HEAD_DIM, VALUE_DIM, VALUES, REST
            )
        else:
            inside = is_key & has_channel[:, None]
            k = _part(head_pages, key_offset + key_channel[:, None], inside, CODES, NUMBER)
            score = tl.dot(q, k, input_precision="ieee")
        score *= scale
        if CODES != 0:
            score *= kv_codes.scale(head_pages + key_offset + HEAD_DIM, is_key, WORDS)[None, :]
        if CAPPED:
            score = _capped(score, softcap)
        score = _masked(score, keys, is_key, masks, SLOPED, RANGED, TREE)
        maximum, total, fade, weight = softmax.weigh(maximum, total, score)
        if CODES != 0:
            value_scales = head_pages + value_stride + key_offset + VALUE_DIM
            weight *= kv_codes.scale(value_scales, is_key, WORDS)[None, :]
        if not LATENT:
            values = head_pages + value_stride
            inside = is_key[:, None] & has_value
            v = _part(values, key_offset[:, None] + channel, inside, CODES, NUMBER)
        weighted = tl.dot(weight.to(v.dtype), v, weighted * fade[:, None], input_precision="ieee")
    return maximum, total, weighted


@triton.jit
def _weigh(
    q,
    q_rest,
    head_pages,
    table,
    start,
    stop,
    earliest,
    strides,
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
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    CODES: tl.constexpr,
    CAPPED: tl.constexpr,
    SLOPED: tl.constexpr,
    RANGED: tl.constexpr,
    TREE: tl.constexpr,
    UNMASKED: tl.constexpr,
):
    """The sums of a tile over the keys `start` ... `stop` - 1 that its queries see, of which the
    first is at the position `earliest`.

    Blocks of which every query sees every key have no masks. They come first, and a masked block of
    such keys has the same sums.
    """
    sums = _no_sums(ROWS, VALUES)
    masked_from = start // KEYS * KEYS
    if UNMASKED:
        first_key, masked_from = masked_from, tl.minimum(earliest + 1, stop) // KEYS * KEYS
        masked_from = tl.maximum(first_key, masked_from)
        sums = _weigh_unmasked(
            *(q, head_pages, table, first_key, masked_from, sums, strides, scale, softcap),
            *(HEAD_DIM, DIM, VALUE_DIM, VALUES, PAGE_SIZE, KEYS, CODES, CAPPED),
        )
    return _weigh_masked(
        *(q, q_rest, head_pages, table, masked_from, stop, sums, strides, scale, softcap, masks),
        *(HEAD_DIM, DIM, VALUE_DIM, VALUES, LATENT, REST, PAGE_SIZE, KEYS, CODES),
        *(CAPPED, SLOPED, RANGED, TREE),
    )


@triton.jit
def _queries(
    query,
    query_offset,
    is_query,
    KEY_DIM: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    DIM: tl.constexpr,
    REST: tl.constexpr,
):
    """A tile of queries, and its channels behind those of values in latents."""
    NUMBER: tl.constexpr = query.dtype.element_ty
    channel = tl.arange(0, DIM)
    inside = is_query[:, None] & (channel < KEY_DIM)
    q = _part(query, query_offset[:, None] + channel, inside, 0, NUMBER)
    q_rest = q
    if REST:
        rest_channel = KEY_DIM + tl.arange(0, REST)
        inside = is_query[:, None] & (rest_channel < HEAD_DIM)
        q_rest = _part(query, query_offset[:, None] + rest_channel, inside, 0, NUMBER)
    return q, q_rest


@triton.jit
def _members(
    head_deal,
    first_token,
    count,
    ROWS: tl.constexpr,
    QUERIES: tl.constexpr,
    SHARED: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Of each row of a tile the new token and the query head, and whether both exist."""
    DEALS: tl.constexpr = (GROUP + SHARED - 1) // SHARED
    tile_row = tl.arange(0, ROWS)
    member = head_deal % DEALS * SHARED + tile_row % SHARED
    token, head = first_token + tile_row // SHARED, head_deal // DEALS * GROUP + member
    return token, head, (tile_row // SHARED < QUERIES) & (token < count) & (member < GROUP)


@triton.jit
def _farthest(
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


@triton.jit
def _positions(
    token,
    is_query,
    first_query,
    first_token,
    context,
    depths,
    ancestors,
    last_keys,
    QUERIES: tl.constexpr,
    TREE: tl.constexpr,
    SPANS: tl.constexpr,
):
    """Position of each query, the last key that it may see and the mask of its ancestors; the
    earliest position in the tile, and the end of the keys that any of its queries may see."""
    position = context + token
    # A token of a tree may be as near to the context as the first of them, whatever its own place.
    earliest = context
    newest = context + first_token + QUERIES
    # A mask that a launch does not have is not read.
    ancestor_bits = position
    if TREE:
        position = context + tl.load(depths + first_query + token, mask=is_query, other=0)
        ancestor_bits = tl.load(ancestors + first_query + token, mask=is_query, other=0)
    else:
        earliest += first_token
    last = position
    if SPANS:
        last = tl.load(last_keys + first_query + token, mask=is_query, other=0)
        newest = tl.maximum(newest, tl.max(last, 0) + 1)
    return position, last, ancestor_bits, earliest, newest


@triton.jit
def _row_partitions(
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


@triton.jit
def _store_result(
    out,
    lse,
    sinks,
    sinks_stride,
    token,
    head,
    maximum,
    total,
    weighted,
    is_query,
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
        sink = tl.load(sinks + token * sinks_stride + head, mask=is_query, other=0.0)
        maximum, total, fade = softmax.with_sink(maximum, total, sink)
        weighted *= fade[:, None]
    target = token.to(tl.int64) * NUM_HEADS + head
    sums = (maximum, total, weighted, is_query)
    _write(out, lse, target, *sums, VALUE_DIM, VALUES, RANGED, LSE, EXACT)


@triton.jit
def _no_sums(ROWS: tl.constexpr, VALUES: tl.constexpr):
    """Sums of a tile that has seen no key."""
    maximum = tl.full((ROWS,), _HIDDEN, tl.float32)
    total = tl.full((ROWS,), 0.0, tl.float32)
    return maximum, total, tl.full((ROWS, VALUES), 0.0, tl.float32)


@triton.jit
def _merged(held_most, held_total, held_weighted, maximum, total, weighted):
    """The sums of the partitions up to one, which has those that come last."""
    held_most, fade, share = softmax.shares(held_most, maximum)
    held_weighted = held_weighted * fade[:, None] + weighted * share[:, None]
    return held_most, held_total * fade + total * share, held_weighted


@triton.jit(do_not_specialize=_COUNTS)
def attend(
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
    block, head_deal = tl.program_id(0), tl.program_id(1)
    row = bounds.row_of(block, query_starts, num_rows, QUERIES)
    first_query = tl.load(query_starts + row)
    num_new = tl.load(query_starts + row + 1) - first_query
    first_token = (block - first_query // QUERIES - row) * QUERIES
    if (first_token >= num_new) | (num_new < at_least) | (num_new > at_most):
        return
    length = tl.load(lengths + row)
    split_place = tl.load(split_starts + row)
    split = split_place >= 0
    context = length - num_new
    span, nearest, first_partition, partitions = _row_partitions(
        context, length, split, window, chunk, WINDOWED, CHUNKED, SPAN, MOST
    )
    partition_stride = tl.num_programs(2)
    if first_partition >= partitions:  # There are no keys, and no merge reads it.
        return
    is_cut = split
    if EXACT:
        is_cut = split_place == split_place
        partition_stride = tl.where(split, partition_stride, 1)

    token, head, is_query = _members(head_deal, first_token, num_new, ROWS, QUERIES, SHARED, GROUP)
    position, last, ancestor_bits, earliest, newest = _positions(
        *(token, is_query, first_query, first_token, context, depths, ancestors, last_keys),
        *(QUERIES, TREE, SPANS),
    )
    query_offset = (first_query + token).to(tl.int64) * query_stride + head * HEAD_DIM
    q, q_rest = _queries(query, query_offset, is_query, KEY_DIM, HEAD_DIM, DIM, REST)
    farthest = _farthest(position, window, chunk, ROWS, WINDOWED, CHUNKED)
    slope = tl.full((ROWS,), 0.0, tl.float32)
    if SLOPED:
        slope = tl.load(slopes + head, mask=is_query, other=0.0)
    from_key = 0
    if RANGED:
        from_key = tl.load(ranges + row * 2)
    masks = (position, last, farthest, slope, ancestor_bits, from_key, first_query, context, depths)
    table = page_table + row.to(tl.int64) * table_width
    head_pages = pages + head_deal // DEALS * head_stride
    strides = (page_stride, token_stride, value_stride)
    newest = tl.minimum(length, newest)
    if EXACT:
        first_reached = bounds.oldest(earliest, window, chunk, WINDOWED, CHUNKED) // span
        first_partition = tl.where(split, first_partition, first_reached)
        partitions = tl.where(split, partitions, tl.cdiv(newest, span))
        held_most, held_total, held_weighted = _no_sums(ROWS, VALUES)
    # The grid is bounded, so that a step of short rows launches few programs: each takes every so
    # many partitions, and their numbers do not depend on how many those are.
    for partition in range(first_partition, partitions, partition_stride):
        # The first token of the tile sees the oldest key, its last token the newest.
        limits = (window, chunk, ranges, row, partition, is_cut, span)
        start, stop = bounds.key_bounds(earliest, newest, *limits, WINDOWED, CHUNKED, RANGED)
        maximum, total, weighted = _weigh(
            *(q, q_rest, head_pages, table, start, stop, earliest, strides, scale, softcap, masks),
            *(HEAD_DIM, DIM, VALUE_DIM, VALUES, LATENT, REST, PAGE_SIZE, ROWS, KEYS, CODES),
            *(CAPPED, SLOPED, RANGED, TREE, UNMASKED),
        )
        if split:
            first_part = ((split_place + token) * NUM_HEADS + head).to(tl.int64) * num_partitions
            place_of_part = first_part + partition - nearest
            _store_partition(
                states, sums, place_of_part, maximum, total, weighted, is_query, VALUES
            )
        else:
            if EXACT:
                held_most, held_total, held_weighted = _merged(
                    held_most, held_total, held_weighted, maximum, total, weighted
                )
                # Written after each partition; what the last one writes stays.
                maximum, total, weighted = held_most, held_total, held_weighted
            _store_result(
                *(out, lse, sinks, sinks_stride, first_query + token, head),
                *(maximum, total, weighted, is_query, NUM_HEADS, VALUE_DIM, VALUES),
                *(SINKS, RANGED, LSE, EXACT),
            )


@triton.jit(do_not_specialize=["num_partitions"])
def merge(
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
    split_place = tl.load(split_starts + row)
    if split_place < 0:
        return
    channel = tl.arange(0, VALUES)
    first_query = tl.load(query_starts + row)
    num_new = tl.load(query_starts + row + 1) - first_query
    length = tl.load(lengths + row)
    oldest = bounds.oldest(length - num_new, window, chunk, WINDOWED, CHUNKED)
    span = bounds.partition_keys(oldest, length, SPAN, MOST)
    num_used = tl.cdiv(length, span) - oldest // span
    for token in range(0, num_new):
        first_part = ((split_place + token) * NUM_HEADS + head).to(tl.int64) * num_partitions
        maximum, total = tl.load(states + first_part * 2), tl.load(states + first_part * 2 + 1)
        weighted = tl.load(sums + first_part * VALUES + channel)
        for partition in range(1, num_used):
            part_maximum = tl.load(states + (first_part + partition) * 2)
            part_total = tl.load(states + (first_part + partition) * 2 + 1)
            maximum, fade, share = softmax.shares(maximum, part_maximum)
            part_weighted = tl.load(sums + (first_part + partition) * VALUES + channel)
            weighted = weighted * fade + part_weighted * share
            total = total * fade + part_total * share
        if SINKS:
            sink = tl.load(sinks + (first_query + token) * sinks_stride + head)
            maximum, total, fade = softmax.with_sink(maximum, total, sink)
            weighted *= fade
        target = (first_query + token).to(tl.int64) * NUM_HEADS + head
        if LSE:
            tl.store(lse + target, maximum + tl.log(tl.where(maximum == _HIDDEN, 1.0, total)))
        if RANGED:
            total = tl.where(maximum == _HIDDEN, 1.0, total)
        result = (weighted / total).to(out.dtype.element_ty)
        tl.store(out + target * VALUE_DIM + channel, result, mask=channel < VALUE_DIM)
