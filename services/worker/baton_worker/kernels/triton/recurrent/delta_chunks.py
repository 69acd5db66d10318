"""Gated delta nets in chunks, for rows of many new tokens; the twin in torch is
`layers.ssm.delta_scan.Blockwise`.

The updates of a chunk depend on each other and on the state before it (see
`layers.ssm.delta_rule.solve`). First every chunk is solved for what does not depend on the state,
all of them side by side: with the inverse of its triangular system, an update is a value less a key
times the state (the WY form of Yang et al. 2024, arXiv:2406.06484; with decays arXiv:2412.06464).
Then programs process the chunks of a sequence with their part of a head's state in registers. Both
are products on tensor cores, with sums in float32. Chunks begin at the same places of every page,
so that the state at the start of a page is at hand when it is written.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_worker.kernels.recurrent.delta import Shape
from baton_worker.kernels.recurrent.ssm_states import Chains, Snapshots
from baton_worker.kernels.triton import power
from baton_worker.kernels.triton.recurrent import chunks

_TOKENS = 32
"""Of a chunk, at most: with them what is read ahead of two chunks fits into the shared memory of
every GPU."""
_LEAST = tl.constexpr(1e-6)
"""Added to squared norms to avoid division by zero."""
_NEVER = tl.constexpr(float("-inf"))


class _Solved(NamedTuple):
    """Chunks [n, heads] in the type of products; channels and tokens that are not there are 0."""

    write: Tensor
    """[n, heads, tokens, keys]: an update reads the state with this, and subtracts it."""
    update: Tensor
    """[n, heads, tokens, values]: of a state of nothing."""
    query: Tensor
    """[n, heads, tokens, keys], with the decay since the start of the chunk."""
    key: Tensor
    """The same of keys, with the decay up to its end."""
    scores: Tensor
    """[n, heads, tokens, tokens]: of queries with the updates up to their own."""
    decay: Tensor
    """float32 [n, heads, keys]: the factor of the state over the chunk."""


@triton.jit
def _unit(x):  # type: ignore[no-untyped-def]
    """Rows of length 1, float32."""
    x = x.to(tl.float32)
    return x * tl.rsqrt(tl.sum(x * x, 1) + _LEAST)[:, None]


@triton.jit  # type: ignore[untyped-decorator]
def _inverse(system, TOKENS: tl.constexpr, LEVELS: tl.constexpr, PRECISION: tl.constexpr):  # type: ignore[no-untyped-def]
    """Of 1 + `system`, which is strictly lower triangular: blocks of 1, 2, 4, ... rows are merged
    in pairs by [[a, 0], [c, b]] -> [[A, 0], [-B c A, B]]. Powers of the system would do too, but
    may be larger than the inverse by many digits."""
    row, column = tl.arange(0, TOKENS)[:, None], tl.arange(0, TOKENS)[None, :]
    inverse = tl.where(row == column, 1.0, 0.0)
    for level in tl.static_range(LEVELS):
        half = 1 << level
        corner = (row // half == column // half + 1) & (row // half % 2 == 1)
        middle = tl.where(corner, system, 0.0)
        if level == 0:
            inverse -= middle
        else:
            product = tl.dot(middle, inverse, input_precision=PRECISION)
            inverse -= tl.dot(inverse, product, input_precision=PRECISION)
    return inverse


@triton.jit  # type: ignore[untyped-decorator]
def _by_channel(  # type: ignore[no-untyped-def]
    queries,
    keys,
    faded,
    at,
    there,
    end,
    stride,
    key,
    has_key,
    TOKENS: tl.constexpr,
    LEVELS: tl.constexpr,
    PRECISION: tl.constexpr,
    NUMBER: tl.constexpr,
):
    """Scores of keys with keys and of queries with keys, with a decay for each channel, of which
    `at` is that of the first token: see `layers.ssm.delta_rule._by_channel`."""
    place = tl.arange(0, TOKENS)
    row, column = place[:, None], place[None, :]
    own = tl.zeros((TOKENS, TOKENS), tl.float32)
    asks = tl.where(row == column, tl.sum(queries * keys, 1)[:, None], 0.0)
    for level in tl.static_range(LEVELS):
        half = 1 << level
        middle = place // (2 * half) * (2 * half) + half - 1
        known = (middle < end)[:, None] & has_key[None, :]
        between = tl.load(at + middle[:, None] * stride + key[None, :], mask=known, other=0.0)
        second = (row // half % 2 == 1) & there[:, None]
        first = (row // half % 2 == 0) & there[:, None]
        later = tl.exp(tl.where(second, faded - between, _NEVER))
        earlier = (keys * tl.exp(tl.where(first, between - faded, _NEVER))).to(NUMBER)
        corner = row // half == column // half + 1
        scores = tl.dot((keys * later).to(NUMBER), tl.trans(earlier), input_precision=PRECISION)
        own += tl.where(corner, scores, 0.0)
        scores = tl.dot((queries * later).to(NUMBER), tl.trans(earlier), input_precision=PRECISION)
        asks += tl.where(corner, scores, 0.0)
    return own, asks


@triton.jit  # type: ignore[untyped-decorator]
def _by_head(  # type: ignore[no-untyped-def]
    queries, keys, faded, TOKENS: tl.constexpr, PRECISION: tl.constexpr, NUMBER: tl.constexpr
):
    """The same with a decay for each head."""
    place = tl.arange(0, TOKENS)
    causal = place[None, :] <= place[:, None]
    decay = tl.exp(tl.where(causal, faded[:, None] - faded[None, :], 0.0))
    turned = tl.trans(keys.to(NUMBER))
    own = tl.dot(keys.to(NUMBER), turned, input_precision=PRECISION) * decay
    asks = tl.dot(queries.to(NUMBER), turned, input_precision=PRECISION) * decay
    return own, asks


@triton.jit  # type: ignore[untyped-decorator]
def _scores(  # type: ignore[no-untyped-def]
    queries,
    keys,
    decay,
    one,
    place,
    there,
    end,
    tail,
    key,
    has_key,
    HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    BY_CHANNEL: tl.constexpr,
    TOKENS: tl.constexpr,
    LEVELS: tl.constexpr,
    KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
    NUMBER: tl.constexpr,
):
    """Of a chunk the scores of keys with keys and of queries with keys, and the factors by which a
    state fades until each token, from each token to the end, and over the whole chunk. `decay` is
    summed from the start of the chunk, whose last place is `tail`."""
    if BY_CHANNEL:
        fading = decay + one * KEY_DIM
        faded = chunks.rows_of(fading, place, there, HEADS * KEY_DIM, key, has_key)
        known = tl.where(tail < end, has_key, False)
        last = tl.load(fading + tail * HEADS * KEY_DIM + key, mask=known, other=0.0)
        own, asks = _by_channel(
            *(queries, keys, faded, fading, there, end, HEADS * KEY_DIM, key, has_key),
            *(TOKENS, LEVELS, PRECISION, NUMBER),
        )
        since, until = tl.exp(faded), tl.exp(last[None, :] - faded)
    else:
        faded = tl.load(decay + one + place * HEADS, mask=there, other=0.0)
        last = tl.load(decay + one + tail * HEADS, mask=tail < end, other=0.0)
        own, asks = _by_head(queries, keys, faded, TOKENS, PRECISION, NUMBER)
        since, until = tl.exp(faded)[:, None], tl.exp(last - faded)[:, None]
        last = tl.zeros((KEYS,), tl.float32) + last
    return own, asks, since, until, tl.exp(last)


@triton.jit  # type: ignore[untyped-decorator]
def _store_keys(  # type: ignore[no-untyped-def]
    solved,
    chosen,
    inverse,
    queries,
    keys,
    strengths,
    since,
    until,
    state_decay,
    place,
    there,
    key,
    TOKENS: tl.constexpr,
    KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
    NUMBER: tl.constexpr,
):
    """Store the factors by which a chunk reads a state and adds to it, by key channel; see
    `_Solved`."""
    to = chosen * TOKENS * KEYS + place[:, None] * KEYS + key[None, :]
    changes = (keys * since * strengths[:, None]).to(NUMBER)
    changes = tl.dot(inverse, changes, input_precision=PRECISION)
    tl.store(solved.write + to, changes.to(NUMBER))
    tl.store(solved.query + to, (queries * since).to(NUMBER))
    tl.store(solved.key + to, tl.where(there[:, None], keys * until, 0.0).to(NUMBER))
    tl.store(solved.decay + chosen * KEYS + key, state_decay)


@triton.jit(do_not_specialize=["num_rows"])  # type: ignore[untyped-decorator]
def _solve(  # type: ignore[no-untyped-def]
    tokens,
    query,
    strength,
    decay,
    chains,
    solved,
    num_rows,
    layout,
    scale,
    PAGE_SIZE: tl.constexpr,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BY_CHANNEL: tl.constexpr,
    TOKENS: tl.constexpr,
    LEVELS: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    NARROW: tl.constexpr,
    PRECISION: tl.constexpr,
    LEAST: tl.constexpr,
):
    """A chunk of one head, see `_Solved`. `decay` is summed from the start of each chunk."""
    NUMBER: tl.constexpr = tokens.dtype.element_ty if NARROW else tl.float32
    EXACT: tl.constexpr = "tf32" if NARROW else PRECISION
    CHUNKS: tl.constexpr = (PAGE_SIZE + TOKENS - 1) // TOKENS
    QUERY: tl.constexpr = HEADS // GROUP * KEY_DIM
    index, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    page, chunk = index // CHUNKS, (index % CHUNKS).to(tl.int32)
    row = chunks.row_with_room(page, chains, num_rows, PAGE_SIZE, LEAST)
    start, stop = tl.load(chains.starts + row), tl.load(chains.stops + row)
    item = start + page - chunks.room(chains, row, PAGE_SIZE, LEAST)
    if (chunks.count(chains, row) < LEAST) | (item >= stop):
        return
    number, begin, first, end = chunks.page_of_row(chains, item, stop, PAGE_SIZE)
    # From here on, tokens are counted from the start of the chunk.
    end = tl.minimum(end.to(tl.int32) - chunk * TOKENS, TOKENS)
    if end <= 0:
        return
    place, key, value = tl.arange(0, TOKENS), tl.arange(0, KEYS), tl.arange(0, VALUES)
    has_key, has_value, there = key < KEY_DIM, value < VALUE_DIM, place < end
    group, stride = head // GROUP * KEY_DIM, layout.token_stride
    page = tokens + number * layout.page_stride + chunk * TOKENS * stride
    keys = chunks.rows_of(page + layout.key_at + group, place, there, stride, key, has_key)
    keys = _unit(keys)
    is_new = there & (place + chunk * TOKENS >= first)
    at = query + (begin - first + chunk * TOKENS) * QUERY + group
    queries = _unit(chunks.rows_of(at, place, is_new, QUERY, key, has_key)) * scale
    one = (item * PAGE_SIZE + chunk * TOKENS) * HEADS + head
    strengths = tl.load(strength + one + place * HEADS, mask=there, other=0.0)
    tail = tl.minimum(TOKENS, PAGE_SIZE - chunk * TOKENS) - 1
    own, asks, since, until, state_decay = _scores(
        *(queries, keys, decay, one, place, there, end, tail, key, has_key),
        *(HEADS, KEY_DIM, BY_CHANNEL, TOKENS, LEVELS, KEYS, PRECISION, NUMBER),
    )
    before = place[None, :] < place[:, None]
    system = tl.where(before, own * strengths[:, None], 0.0)
    inverse = _inverse(system, TOKENS, LEVELS, EXACT).to(NUMBER)
    chosen = index * HEADS + head
    _store_keys(
        *(solved, chosen, inverse, queries, keys, strengths, since, until, state_decay),
        *(place, there, key, TOKENS, KEYS, PRECISION, NUMBER),
    )
    to = chosen * TOKENS * TOKENS + place[:, None] * TOKENS + place[None, :]
    causal = place[None, :] <= place[:, None]
    tl.store(solved.scores + to, tl.where(causal, asks, 0.0).to(NUMBER))
    at = page + layout.value_at + head * VALUE_DIM
    values = chunks.rows_of(at, place, there, stride, value, has_value)
    values = (values.to(tl.float32) * strengths[:, None]).to(NUMBER)
    values = tl.dot(inverse, values, input_precision=PRECISION)
    to = chosen * TOKENS * VALUES + place[:, None] * VALUES + value[None, :]
    tl.store(solved.update + to, values.to(NUMBER))


@triton.jit  # type: ignore[untyped-decorator]
def _scan(  # type: ignore[no-untyped-def]
    states,
    chains,
    solved,
    out,
    state_stride,
    PAGE_SIZE: tl.constexpr,
    HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    TOKENS: tl.constexpr,
    KEYS: tl.constexpr,
    ALL: tl.constexpr,
    VALUES: tl.constexpr,
    PRECISION: tl.constexpr,
    LEAST: tl.constexpr,
):
    """Some value channels of one head, along the solved chunks of one sequence; a chunk has ALL
    value channels."""
    CHUNKS: tl.constexpr = (PAGE_SIZE + TOKENS - 1) // TOKENS
    OUT: tl.constexpr = HEADS * VALUE_DIM
    NUMBER: tl.constexpr = solved.write.dtype.element_ty
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if chunks.count(chains, row) < LEAST:
        return
    start, stop = tl.load(chains.starts + row), tl.load(chains.stops + row)
    first_chunk = chunks.room(chains, row, PAGE_SIZE, LEAST) * CHUNKS
    key, value = tl.arange(0, KEYS), tl.program_id(2) * VALUES + tl.arange(0, VALUES)
    inside = (key < KEY_DIM)[:, None] & (value < VALUE_DIM)[None, :]
    state_at = (head * KEY_DIM + key[:, None]) * VALUE_DIM + value[None, :]
    initial = states + tl.load(chains.pages + start) * state_stride
    state = tl.load(initial + state_at, mask=inside, other=0.0)
    place = tl.arange(0, TOKENS)
    row_key = place[:, None] * KEYS + key[None, :]
    row_value = place[:, None] * ALL + value[None, :]
    row_score = place[:, None] * TOKENS + place[None, :]
    for step in range(0, chunks.steps(start, stop, chains, CHUNKS, TOKENS)):
        at = start * CHUNKS + step
        item, chunk = at // CHUNKS, (at % CHUNKS).to(tl.int32)
        number, begin, first, end = chunks.page_of_row(chains, item, stop, PAGE_SIZE)
        to = states + number * state_stride + state_at
        begun = (item > start) & (chunk == 0)
        tl.store(to, state, mask=tl.where(begun, inside, False))
        chosen = (first_chunk + step) * HEADS + head
        changes = tl.load(solved.write + chosen * TOKENS * KEYS + row_key)
        queries = tl.load(solved.query + chosen * TOKENS * KEYS + row_key)
        keys = tl.load(solved.key + chosen * TOKENS * KEYS + row_key)
        updates = tl.load(solved.update + chosen * TOKENS * ALL + row_value).to(tl.float32)
        own = tl.load(solved.scores + chosen * TOKENS * TOKENS + row_score)
        state_decay = tl.load(solved.decay + chosen * KEYS + key)
        narrow = state.to(NUMBER)
        updates -= tl.dot(changes, narrow, input_precision=PRECISION)
        news = updates.to(NUMBER)
        answers = tl.dot(queries, narrow, input_precision=PRECISION)
        answers = tl.dot(own, news, answers, input_precision=PRECISION)
        token = chunk * TOKENS + place
        is_new = (token >= first) & (token < end.to(tl.int32))
        target = out + (begin - first) * OUT + head * VALUE_DIM
        target += token[:, None] * OUT + value[None, :]
        tl.store(target, answers, mask=is_new[:, None] & (value < VALUE_DIM)[None, :])
        state *= state_decay[:, None]
        state = tl.dot(tl.trans(keys), news, state, input_precision=PRECISION)


def delta_chunks(
    shape: Shape,
    snapshots: Snapshots,
    query: Tensor,
    chains: Chains,
    strength: Tensor,
    decay: Tensor,
    out: Tensor,
) -> None:
    """Write the states of pages and the outputs `out` of rows of many new tokens, see
    `kernels.recurrent.delta.CpuDelta`. Everything is contiguous but the pages."""
    (tokens, states), form = snapshots, chunks.form(snapshots.tokens, _TOKENS)
    size, number = form["TOKENS"], tokens.dtype if form["NARROW"] else torch.float32
    keys, values = (max(16, power(dim)) for dim in (shape.key_dim, shape.value_dim))
    per_page = -(-tokens.shape[1] // size)
    count = chunks.rooms(len(query), tokens.shape[1]) * per_page
    num_rows = len(chains.starts)

    def empty(*sizes: int) -> Tensor:
        return query.new_empty((count, shape.heads, *sizes), dtype=number)

    like = size, keys
    solved = _Solved(
        *(empty(*like), empty(size, values), empty(*like), empty(*like), empty(size, size)),
        query.new_empty((count, shape.heads, keys)),
    )
    total = torch.cat([part.cumsum(1) for part in torch.split(decay, size, 1)], 1)
    sizes: dict[str, Any] = {
        **{"PAGE_SIZE": tokens.shape[1], "HEADS": shape.heads, "TOKENS": size, "KEYS": keys},
        **{"KEY_DIM": shape.key_dim, "VALUE_DIM": shape.value_dim, "PRECISION": form["PRECISION"]},
        "LEAST": chunks.least(tokens.shape[1]),
    }
    solve: Any = _solve[(count, shape.heads)]
    solve(
        *(tokens, query, strength, total, chains, solved, num_rows),
        *(chunks.Layout.of(snapshots, shape.key, shape.value), shape.key_dim**-0.5),
        **sizes,
        GROUP=shape.heads // shape.key_heads,
        BY_CHANNEL=shape.channels > 1,
        LEVELS=size.bit_length() - 1,
        VALUES=values,
        NARROW=form["NARROW"],
        num_warps=8 if size > 16 else 4,
    )
    some = min(chunks.VALUES, values)
    scan: Any = _scan[(num_rows, shape.heads, -(-shape.value_dim // some))]
    scan(
        *(states, chains, solved, out, states.stride(0)),
        **sizes,
        ALL=values,
        VALUES=some,
        num_stages=3,
    )
