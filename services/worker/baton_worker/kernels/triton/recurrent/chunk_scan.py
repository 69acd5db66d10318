"""The scan of state-space layers in chunks, for rows of many new tokens (Dao and Gu 2024,
arXiv:2405.21060); the twin is `kernels.recurrent.ssm_states.PlainStates`.

A program processes the pages of a sequence with its part of a head's state in registers, chunk by
chunk of tokens. What a chunk reads of the state, what it reads of its own tokens by their decayed
scores, and what it adds to the state are products on tensor cores with sums in float32. Chunks
begin at the same places of every page, so that the state at the start of a page is at hand when it
is written.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from baton_worker.kernels.recurrent.ssm_states import Chains, Fading, Shape, Snapshots
from baton_worker.kernels.triton import power
from baton_worker.kernels.triton.recurrent import chunks


@triton.jit  # type: ignore[untyped-decorator]
def _own(queries, keys, values, here, counts, token, there, PRECISION: tl.constexpr):  # type: ignore[no-untyped-def]
    """The output of the queries of a chunk from its tokens up to their own."""
    scores = tl.dot(queries, tl.trans(keys), input_precision=PRECISION)
    causal = (token[None, :] <= token[:, None]) & there[None, :]
    decay = tl.exp(tl.where(causal, here[:, None] - here[None, :], 0.0)) * counts[None, :]
    scores = tl.where(causal, scores * decay, 0.0).to(keys.dtype)
    return tl.dot(scores, values, input_precision=PRECISION)


@triton.jit  # type: ignore[untyped-decorator]
def _decays(fading, one, token, there, chunk, end, PAGE_SIZE: tl.constexpr, TOKENS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Of a chunk: the decay up to each token, what each token counts, and the decays up to the
    token before the chunk and up to its last one."""
    here = tl.load(fading.faded + one + token, mask=there, other=0.0)
    counts = tl.load(fading.weight + one + token, mask=there, other=0.0)
    tail = tl.minimum(chunk * TOKENS + TOKENS, PAGE_SIZE) - 1
    before = tl.load(fading.faded + one + chunk * TOKENS - 1, mask=chunk > 0, other=0.0)
    last = tl.load(fading.faded + one + tail, mask=tail < end, other=0.0)
    return here, counts, before, last


@triton.jit  # type: ignore[untyped-decorator]
def _scan(  # type: ignore[no-untyped-def]
    snapshots,
    query,
    chains,
    fading,
    out,
    layout,
    PAGE_SIZE: tl.constexpr,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    TOKENS: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    NARROW: tl.constexpr,
    PRECISION: tl.constexpr,
    LEAST: tl.constexpr,
):
    """Some value channels of one head, along the pages of one sequence of LEAST new tokens and
    more. If NARROW, products are of numbers as pages have them."""
    NUMBER: tl.constexpr = snapshots.tokens.dtype.element_ty if NARROW else tl.float32
    CHUNKS: tl.constexpr = (PAGE_SIZE + TOKENS - 1) // TOKENS
    QUERY: tl.constexpr = HEADS // GROUP * KEY_DIM
    OUT: tl.constexpr = HEADS * VALUE_DIM
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if chunks.count(chains, row) < LEAST:
        return
    start, stop = tl.load(chains.starts + row), tl.load(chains.stops + row)
    key, value = tl.arange(0, KEYS), tl.program_id(2) * VALUES + tl.arange(0, VALUES)
    has_key, has_value = key < KEY_DIM, value < VALUE_DIM
    inside = has_key[:, None] & has_value[None, :]
    place = (head * KEY_DIM + key[:, None]) * VALUE_DIM + value[None, :]
    group = head // GROUP * KEY_DIM
    initial = snapshots.states + tl.load(chains.pages + start) * layout.state_stride
    state = tl.load(initial + place, mask=inside, other=0.0)
    for step in range(0, chunks.steps(start, stop, chains, CHUNKS, TOKENS)):
        at = start * CHUNKS + step
        item, chunk = at // CHUNKS, (at % CHUNKS).to(tl.int32)
        number, begin, first, end = chunks.page_of_row(chains, item, stop, PAGE_SIZE)
        end = end.to(tl.int32)
        to = snapshots.states + number * layout.state_stride + place
        begun = (item > start) & (chunk == 0)
        tl.store(to, state, mask=tl.where(begun, inside, False))
        token = chunk * TOKENS + tl.arange(0, TOKENS)
        there = token < end
        page, stride = snapshots.tokens + number * layout.page_stride, layout.token_stride
        from_key, from_value = page + layout.key_at + group, page + layout.value_at
        from_value += head * VALUE_DIM
        keys = chunks.rows_of(from_key, token, there, stride, key, has_key).to(NUMBER)
        values = chunks.rows_of(from_value, token, there, stride, value, has_value).to(NUMBER)
        one = (item * HEADS + head) * PAGE_SIZE
        here, counts, before, last = _decays(
            fading, one, token, there, chunk, end, PAGE_SIZE, TOKENS
        )
        is_new = there & (token >= first)
        from_query = query + (begin - first) * QUERY + group
        queries = chunks.rows_of(from_query, token, is_new, QUERY, key, has_key).to(NUMBER)
        carried = tl.dot(queries, state.to(NUMBER), input_precision=PRECISION)
        carried *= tl.exp(here - before)[:, None]
        carried += _own(queries, keys, values, here, counts, token, there, PRECISION)
        target = out + (begin - first) * OUT + head * VALUE_DIM
        target += token[:, None] * OUT + value[None, :]
        tl.store(target, carried, mask=is_new[:, None] & has_value[None, :])
        decay = tl.where(there, tl.exp(last - here) * counts, 0.0)
        added = (keys.to(tl.float32) * decay[:, None]).to(NUMBER)
        state *= tl.exp(last - before)
        state = tl.dot(tl.trans(added), values, state, input_precision=PRECISION)


def chunk_scan(
    shape: Shape,
    snapshots: Snapshots,
    query: Tensor,
    chains: Chains,
    fading: Fading,
    out: Tensor,
) -> None:
    """Write the states of pages and the outputs `out` of rows of many new tokens, see
    `kernels.recurrent.ssm_states.Walker`. Everything is contiguous but the pages."""
    tokens = snapshots.tokens
    form = chunks.form(tokens)
    # Queries of pages of bfloat16 have no more digits.
    narrow_query = query.to(tokens.dtype) if form["NARROW"] else query
    values = max(16, min(chunks.VALUES, power(shape.value_dim)))
    scan: Any = _scan[(len(chains.starts), shape.heads, -(-shape.value_dim // values))]
    scan(
        *(snapshots, narrow_query, chains, fading, out),
        chunks.Layout.of(snapshots, shape.key, shape.value),
        PAGE_SIZE=tokens.shape[1],
        HEADS=shape.heads,
        GROUP=shape.heads // shape.groups,
        KEY_DIM=shape.key_dim,
        VALUE_DIM=shape.value_dim,
        KEYS=max(16, power(shape.key_dim)),
        VALUES=values,
        LEAST=chunks.least(tokens.shape[1]),
        **form,
        num_warps=8 if form["TOKENS"] > 32 else 4,
        num_stages=3,
    )
