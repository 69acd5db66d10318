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


@triton.jit
def _outputs(queries, keys, values, state, decays, token, is_token, PRECISION: tl.constexpr):
    """The outputs of the queries of a chunk: from the state before it, and from its tokens up to
    their own."""
    token_decay, token_weight, start_decay, _ = decays
    outputs = tl.dot(queries, state.to(queries.dtype), input_precision=PRECISION)
    outputs *= tl.exp(token_decay - start_decay)[:, None]
    scores = tl.dot(queries, tl.trans(keys), input_precision=PRECISION)
    causal = (token[None, :] <= token[:, None]) & is_token[None, :]
    decay = tl.exp(tl.where(causal, token_decay[:, None] - token_decay[None, :], 0.0))
    decay *= token_weight[None, :]
    scores = tl.where(causal, scores * decay, 0.0).to(keys.dtype)
    outputs += tl.dot(scores, values, input_precision=PRECISION)
    return outputs


@triton.jit
def _next_state(state, keys, values, decays, is_token, PRECISION: tl.constexpr):
    """The state behind a chunk: the one before it faded, and what its tokens add."""
    token_decay, token_weight, start_decay, end_decay = decays
    added_weight = tl.where(is_token, tl.exp(end_decay - token_decay) * token_weight, 0.0)
    added = (keys.to(tl.float32) * added_weight[:, None]).to(keys.dtype)
    state *= tl.exp(end_decay - start_decay)
    return tl.dot(tl.trans(added), values, state, input_precision=PRECISION)


@triton.jit
def _decays(
    fading, first_token, token, is_token, chunk, end, PAGE_SIZE: tl.constexpr, TOKENS: tl.constexpr
):
    """Of a chunk: the decay up to each token, what each token counts, and the decays up to the
    token before the chunk and up to its last one."""
    token_decay = tl.load(fading.faded + first_token + token, mask=is_token, other=0.0)
    token_weight = tl.load(fading.weight + first_token + token, mask=is_token, other=0.0)
    last_token = tl.minimum(chunk * TOKENS + TOKENS, PAGE_SIZE) - 1
    start_decay = tl.load(
        fading.faded + first_token + chunk * TOKENS - 1, mask=chunk > 0, other=0.0
    )
    end_decay = tl.load(fading.faded + first_token + last_token, mask=last_token < end, other=0.0)
    return token_decay, token_weight, start_decay, end_decay


@triton.jit
def _scan(
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
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if chunks.count(chains, row) < LEAST:
        return
    start, stop = tl.load(chains.starts + row), tl.load(chains.stops + row)
    key, value = tl.arange(0, KEYS), tl.program_id(2) * VALUES + tl.arange(0, VALUES)
    has_key, has_value = key < KEY_DIM, value < VALUE_DIM
    inside = has_key[:, None] & has_value[None, :]
    state_offset = (head * KEY_DIM + key[:, None]) * VALUE_DIM + value[None, :]
    key_head = head // GROUP * KEY_DIM
    initial = snapshots.states + tl.load(chains.pages + start) * layout.state_stride
    state = tl.load(initial + state_offset, mask=inside, other=0.0)
    for step in range(0, chunks.steps(start, stop, chains, CHUNKS, TOKENS)):
        entry, chunk, page_number, first_query, first_new, end = chunks.chunk_of_row(
            chains, step, start, stop, CHUNKS, PAGE_SIZE
        )
        page_state = snapshots.states + page_number * layout.state_stride + state_offset
        chunks.store_state(page_state, state, inside, entry, start, chunk)
        token = chunk * TOKENS + tl.arange(0, TOKENS)
        is_token = token < end
        page, stride = snapshots.tokens + page_number * layout.page_stride, layout.token_stride
        from_key, from_value = page + layout.key_at + key_head, page + layout.value_at
        from_value += head * VALUE_DIM
        keys = chunks.rows_of(from_key, token, is_token, stride, key, has_key).to(NUMBER)
        values = chunks.rows_of(from_value, token, is_token, stride, value, has_value).to(NUMBER)
        first_token = (entry * HEADS + head) * PAGE_SIZE
        decays = _decays(fading, first_token, token, is_token, chunk, end, PAGE_SIZE, TOKENS)
        is_new = is_token & (token >= first_new)
        from_query = query + first_query * QUERY + key_head
        queries = chunks.rows_of(from_query, token, is_new, QUERY, key, has_key).to(NUMBER)
        outputs = _outputs(queries, keys, values, state, decays, token, is_token, PRECISION)
        place = (first_query, token, is_new, head, value)
        chunks.store_outputs(out, outputs, *place, HEADS, VALUE_DIM)
        state = _next_state(state, keys, values, decays, is_token, PRECISION)


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
