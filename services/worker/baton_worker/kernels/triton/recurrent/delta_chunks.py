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

    @classmethod
    def empty(
        cls, like: Tensor, heads: tuple[int, int], *sizes: int, dtype: torch.dtype
    ) -> _Solved:
        """Room for `heads`, (n, heads), in chunks of tokens with keys and values: the `sizes`."""
        size, keys, values = sizes
        shapes = (size, keys), (size, values), (size, keys), (size, keys), (size, size)
        parts = [like.new_empty((*heads, *shape), dtype=dtype) for shape in shapes]
        return cls._make([*parts, like.new_empty((*heads, keys))])


@triton.jit
def _unit(x):
    """Rows of length 1, float32."""
    x = x.to(tl.float32)
    return x * tl.rsqrt(tl.sum(x * x, 1) + _LEAST)[:, None]


@triton.jit
def _inverse(system, TOKENS: tl.constexpr, LEVELS: tl.constexpr, PRECISION: tl.constexpr):
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


@triton.jit
def _by_channel(
    queries,
    keys,
    token_decay,
    first_decay,
    is_token,
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
    `first_decay` is that of the first token: see `layers.ssm.delta_rule._by_channel`."""
    position = tl.arange(0, TOKENS)
    row, column = position[:, None], position[None, :]
    key_scores = tl.zeros((TOKENS, TOKENS), tl.float32)
    query_scores = tl.where(row == column, tl.sum(queries * keys, 1)[:, None], 0.0)
    for level in tl.static_range(LEVELS):
        half = 1 << level
        middle = position // (2 * half) * (2 * half) + half - 1
        has_middle = (middle < end)[:, None] & has_key[None, :]
        middle_decay = tl.load(
            first_decay + middle[:, None] * stride + key[None, :], mask=has_middle, other=0.0
        )
        in_second_half = (row // half % 2 == 1) & is_token[:, None]
        in_first_half = (row // half % 2 == 0) & is_token[:, None]
        decay_from_middle = tl.exp(tl.where(in_second_half, token_decay - middle_decay, _NEVER))
        decay_to_middle = tl.exp(tl.where(in_first_half, middle_decay - token_decay, _NEVER))
        faded_keys = tl.trans((keys * decay_to_middle).to(NUMBER))
        is_corner = row // half == column // half + 1
        decayed = (keys * decay_from_middle).to(NUMBER)
        scores = tl.dot(decayed, faded_keys, input_precision=PRECISION)
        key_scores += tl.where(is_corner, scores, 0.0)
        decayed = (queries * decay_from_middle).to(NUMBER)
        scores = tl.dot(decayed, faded_keys, input_precision=PRECISION)
        query_scores += tl.where(is_corner, scores, 0.0)
    return key_scores, query_scores


@triton.jit
def _by_head(
    queries, keys, token_decay, TOKENS: tl.constexpr, PRECISION: tl.constexpr, NUMBER: tl.constexpr
):
    """The same with a decay for each head."""
    position = tl.arange(0, TOKENS)
    causal = position[None, :] <= position[:, None]
    decay = tl.exp(tl.where(causal, token_decay[:, None] - token_decay[None, :], 0.0))
    keys_transposed = tl.trans(keys.to(NUMBER))
    key_scores = tl.dot(keys.to(NUMBER), keys_transposed, input_precision=PRECISION) * decay
    query_scores = tl.dot(queries.to(NUMBER), keys_transposed, input_precision=PRECISION) * decay
    return key_scores, query_scores


@triton.jit
def _scores(
    queries,
    keys,
    decay,
    first_token,
    position,
    is_token,
    end,
    last_position,
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
    summed from the start of the chunk, whose last token is at `last_position`."""
    if BY_CHANNEL:
        chunk_decay = decay + first_token * KEY_DIM
        token_decay = chunks.rows_of(chunk_decay, position, is_token, HEADS * KEY_DIM, key, has_key)
        has_last = tl.where(last_position < end, has_key, False)
        total_decay = tl.load(
            chunk_decay + last_position * HEADS * KEY_DIM + key, mask=has_last, other=0.0
        )
        key_scores, query_scores = _by_channel(
            *(queries, keys, token_decay, chunk_decay, is_token),
            *(end, HEADS * KEY_DIM, key, has_key),
            *(TOKENS, LEVELS, PRECISION, NUMBER),
        )
        decay_from_start = tl.exp(token_decay)
        decay_to_end = tl.exp(total_decay[None, :] - token_decay)
    else:
        token_decay = tl.load(decay + first_token + position * HEADS, mask=is_token, other=0.0)
        total_decay = tl.load(
            decay + first_token + last_position * HEADS, mask=last_position < end, other=0.0
        )
        key_scores, query_scores = _by_head(queries, keys, token_decay, TOKENS, PRECISION, NUMBER)
        decay_from_start = tl.exp(token_decay)[:, None]
        decay_to_end = tl.exp(total_decay - token_decay)[:, None]
        total_decay = tl.zeros((KEYS,), tl.float32) + total_decay
    return key_scores, query_scores, decay_from_start, decay_to_end, tl.exp(total_decay)


@triton.jit
def _store_keys(
    solved,
    solved_index,
    inverse,
    queries,
    keys,
    strengths,
    decays,
    position,
    is_token,
    key,
    TOKENS: tl.constexpr,
    KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
    NUMBER: tl.constexpr,
):
    """Store the factors by which a chunk reads a state and adds to it, by key channel; see
    `_Solved`. `decays` are those of `_scores`."""
    decay_from_start, decay_to_end, state_decay = decays
    offset = solved_index * TOKENS * KEYS + position[:, None] * KEYS + key[None, :]
    write = (keys * decay_from_start * strengths[:, None]).to(NUMBER)
    write = tl.dot(inverse, write, input_precision=PRECISION)
    tl.store(solved.write + offset, write.to(NUMBER))
    tl.store(solved.query + offset, (queries * decay_from_start).to(NUMBER))
    tl.store(solved.key + offset, tl.where(is_token[:, None], keys * decay_to_end, 0.0).to(NUMBER))
    tl.store(solved.decay + solved_index * KEYS + key, state_decay)


@triton.jit
def _store_values(
    solved,
    solved_index,
    inverse,
    values,
    strengths,
    position,
    value,
    TOKENS: tl.constexpr,
    VALUES: tl.constexpr,
    PRECISION: tl.constexpr,
    NUMBER: tl.constexpr,
):
    """Store the updates of a chunk that has a state of nothing before it; see `_Solved`."""
    values = (values.to(tl.float32) * strengths[:, None]).to(NUMBER)
    values = tl.dot(inverse, values, input_precision=PRECISION)
    target = solved_index * TOKENS * VALUES + position[:, None] * VALUES + value[None, :]
    tl.store(solved.update + target, values.to(NUMBER))


@triton.jit
def _store_scores(
    solved, solved_index, query_scores, position, TOKENS: tl.constexpr, NUMBER: tl.constexpr
):
    """Store the scores of the queries of a chunk with its updates up to their own."""
    target = solved_index * TOKENS * TOKENS + position[:, None] * TOKENS + position[None, :]
    causal = position[None, :] <= position[:, None]
    tl.store(solved.scores + target, tl.where(causal, query_scores, 0.0).to(NUMBER))


@triton.jit(do_not_specialize=["num_rows"])
def _solve(
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
    chunk_index, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    page, chunk = chunk_index // CHUNKS, (chunk_index % CHUNKS).to(tl.int32)
    row = chunks.row_with_room(page, chains, num_rows, PAGE_SIZE, LEAST)
    start, stop = tl.load(chains.starts + row), tl.load(chains.stops + row)
    entry = start + page - chunks.room(chains, row, PAGE_SIZE, LEAST)
    if (chunks.count(chains, row) < LEAST) | (entry >= stop):
        return
    page_number, first_query, first_new, end = chunks.page_of_row(chains, entry, stop, PAGE_SIZE)
    # From here on, tokens are counted from the start of the chunk.
    end = tl.minimum(end.to(tl.int32) - chunk * TOKENS, TOKENS)
    if end <= 0:
        return
    position, key, value = tl.arange(0, TOKENS), tl.arange(0, KEYS), tl.arange(0, VALUES)
    has_key, has_value, is_token = key < KEY_DIM, value < VALUE_DIM, position < end
    key_head, token_stride = head // GROUP * KEY_DIM, layout.token_stride
    page = tokens + page_number * layout.page_stride + chunk * TOKENS * token_stride
    keys = chunks.rows_of(
        page + layout.key_at + key_head, position, is_token, token_stride, key, has_key
    )
    keys = _unit(keys)
    is_new = is_token & (position + chunk * TOKENS >= first_new)
    source = query + (first_query - first_new + chunk * TOKENS) * QUERY + key_head
    queries = _unit(chunks.rows_of(source, position, is_new, QUERY, key, has_key)) * scale
    first_token = (entry * PAGE_SIZE + chunk * TOKENS) * HEADS + head
    strengths = tl.load(strength + first_token + position * HEADS, mask=is_token, other=0.0)
    last_position = tl.minimum(TOKENS, PAGE_SIZE - chunk * TOKENS) - 1
    key_scores, query_scores, decay_from_start, decay_to_end, state_decay = _scores(
        *(queries, keys, decay, first_token, position, is_token, end, last_position, key, has_key),
        *(HEADS, KEY_DIM, BY_CHANNEL, TOKENS, LEVELS, KEYS, PRECISION, NUMBER),
    )
    is_earlier = position[None, :] < position[:, None]
    system = tl.where(is_earlier, key_scores * strengths[:, None], 0.0)
    inverse = _inverse(system, TOKENS, LEVELS, EXACT).to(NUMBER)
    solved_index = chunk_index * HEADS + head
    decays = (decay_from_start, decay_to_end, state_decay)
    _store_keys(
        *(solved, solved_index, inverse, queries, keys, strengths, decays),
        *(position, is_token, key, TOKENS, KEYS, PRECISION, NUMBER),
    )
    _store_scores(solved, solved_index, query_scores, position, TOKENS, NUMBER)
    source = page + layout.value_at + head * VALUE_DIM
    values = chunks.rows_of(source, position, is_token, token_stride, value, has_value)
    _store_values(
        *(solved, solved_index, inverse, values, strengths),
        *(position, value, TOKENS, VALUES, PRECISION, NUMBER),
    )


@triton.jit
def _chunk(
    solved,
    solved_index,
    position,
    key,
    value,
    TOKENS: tl.constexpr,
    KEYS: tl.constexpr,
    ALL: tl.constexpr,
):
    """A solved chunk with some of its ALL value channels, in the order of `_Solved`."""
    key_offset = position[:, None] * KEYS + key[None, :]
    value_offset = position[:, None] * ALL + value[None, :]
    score_offset = position[:, None] * TOKENS + position[None, :]
    write = tl.load(solved.write + solved_index * TOKENS * KEYS + key_offset)
    queries = tl.load(solved.query + solved_index * TOKENS * KEYS + key_offset)
    keys = tl.load(solved.key + solved_index * TOKENS * KEYS + key_offset)
    updates = tl.load(solved.update + solved_index * TOKENS * ALL + value_offset).to(tl.float32)
    scores = tl.load(solved.scores + solved_index * TOKENS * TOKENS + score_offset)
    decay = tl.load(solved.decay + solved_index * KEYS + key)
    return write, updates, queries, keys, scores, decay


@triton.jit
def _scan(
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
    position = tl.arange(0, TOKENS)
    for step in range(0, chunks.steps(start, stop, chains, CHUNKS, TOKENS)):
        entry, chunk, page_number, first_query, first_new, end = chunks.chunk_of_row(
            chains, step, start, stop, CHUNKS, PAGE_SIZE
        )
        page_state = states + page_number * state_stride + state_at
        chunks.store_state(page_state, state, inside, entry, start, chunk)
        solved_index = (first_chunk + step) * HEADS + head
        write, updates, queries, keys, scores, state_decay = _chunk(
            solved, solved_index, position, key, value, TOKENS, KEYS, ALL
        )
        rounded_state = state.to(NUMBER)
        updates -= tl.dot(write, rounded_state, input_precision=PRECISION)
        rounded_updates = updates.to(NUMBER)
        outputs = tl.dot(queries, rounded_state, input_precision=PRECISION)
        outputs = tl.dot(scores, rounded_updates, outputs, input_precision=PRECISION)
        token = chunk * TOKENS + position
        is_new = (token >= first_new) & (token < end)
        place = (first_query, token, is_new, head, value)
        chunks.store_outputs(out, outputs, *place, HEADS, VALUE_DIM)
        state *= state_decay[:, None]
        state = tl.dot(tl.trans(keys), rounded_updates, state, input_precision=PRECISION)


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
    solved = _Solved.empty(query, (count, shape.heads), size, keys, values, dtype=number)
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
