"""State updates of state-space layers; the twin is `kernels.recurrent.ssm_states.PlainStates`.

A program has a tile of one head, of tokens always at the same place of their page, and sums in
float32. So the bits of a token depend neither on other pages nor on which of its page's tokens are
new. Rows of many new tokens are left to `chunk_scan`.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from baton_worker.kernels.recurrent.ssm_states import Chains, Fading, Shape, Snapshots
from baton_worker.kernels.triton import power
from baton_worker.kernels.triton.recurrent import chunks
from baton_worker.kernels.triton.recurrent.chunk_scan import chunk_scan

_TOKENS = 16
"""Tokens of a tile."""
_MOST = 64
"""Channels of a tile, at most."""


@triton.jit
def _part(index, SIZE: tl.constexpr, WIDTH: tl.constexpr):
    """The channels of a tile, and which of them there are."""
    channel = index * WIDTH + tl.arange(0, WIDTH)
    return channel, channel < SIZE


@triton.jit
def _rows(page, token, is_token, token_stride, channel, inside):
    """Channels of some tokens, float32."""
    return chunks.rows_of(page, token, is_token, token_stride, channel, inside).to(tl.float32)


@triton.jit(do_not_specialize=["at_most"])
def _carry(
    snapshots,
    chains,
    fading,
    at_most,
    layout,
    PAGE_SIZE: tl.constexpr,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    TOKENS: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
):
    """A tile of a head's states at the starts of a row's pages, each from the page before it."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    start, stop = tl.load(chains.starts + row), tl.load(chains.stops + row)
    if (stop - start < 2) | (chunks.count(chains, row) > at_most):
        return
    value_tiles = tl.cdiv(VALUE_DIM, VALUES)
    key, has_key = _part(tl.program_id(2) // value_tiles, KEY_DIM, KEYS)
    value, has_value = _part(tl.program_id(2) % value_tiles, VALUE_DIM, VALUES)
    inside = has_key[:, None] & has_value[None, :]
    state_offset = (head * KEY_DIM + key[:, None]) * VALUE_DIM + value[None, :]
    initial = snapshots.states + tl.load(chains.pages + start) * layout.state_stride
    state = tl.load(initial + state_offset, mask=inside, other=0.0)
    for entry in range(start, stop - 1):
        page = snapshots.tokens + tl.load(chains.pages + entry) * layout.page_stride
        first_token = (entry * HEADS + head) * PAGE_SIZE
        from_key = page + layout.key_at + head // GROUP * KEY_DIM
        from_value = page + layout.value_at + head * VALUE_DIM
        page_decay = tl.load(fading.faded + first_token + PAGE_SIZE - 1)
        state *= tl.exp(page_decay)
        for first in range(0, PAGE_SIZE, TOKENS):
            token = first + tl.arange(0, TOKENS)
            is_token = token < PAGE_SIZE
            token_decay = tl.load(fading.faded + first_token + token, mask=is_token, other=0.0)
            token_weight = tl.exp(page_decay - token_decay)
            token_weight *= tl.load(fading.weight + first_token + token, mask=is_token, other=0.0)
            keys = _rows(from_key, token, is_token, layout.token_stride, key, has_key)
            keys *= token_weight[:, None]
            values = _rows(from_value, token, is_token, layout.token_stride, value, has_value)
            state = tl.dot(tl.trans(keys), values, state, input_precision="ieee")
        next_state = snapshots.states + tl.load(chains.pages + entry + 1) * layout.state_stride
        tl.store(next_state + state_offset, state, mask=inside)


@triton.jit
def _read_state(
    state,
    from_query,
    query_stride,
    token,
    is_new,
    value,
    has_value,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    TOKENS: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
):
    """Queries of a tile times some value channels of a head's state."""
    total = tl.zeros((TOKENS, VALUES), tl.float32)
    for key_tile in range(0, tl.cdiv(KEY_DIM, KEYS)):
        key, has_key = _part(key_tile, KEY_DIM, KEYS)
        queries = _rows(from_query, token, is_new, query_stride, key, has_key)
        inside = has_key[:, None] & has_value[None, :]
        source = state + key[:, None] * VALUE_DIM + value[None, :]
        state_tile = tl.load(source, mask=inside, other=0.0)
        total = tl.dot(queries, state_tile, total, input_precision="ieee")
    return total


@triton.jit
def _scores(
    from_query,
    query_stride,
    token,
    is_new,
    from_key,
    token_stride,
    key_token,
    has_key_token,
    KEY_DIM: tl.constexpr,
    TOKENS: tl.constexpr,
    KEYS: tl.constexpr,
):
    """Queries of a tile times the keys of another one."""
    total = tl.zeros((TOKENS, TOKENS), tl.float32)
    for key_tile in range(0, tl.cdiv(KEY_DIM, KEYS)):
        key, has_key = _part(key_tile, KEY_DIM, KEYS)
        queries = _rows(from_query, token, is_new, query_stride, key, has_key)
        keys = _rows(from_key, key_token, has_key_token, token_stride, key, has_key)
        total = tl.dot(queries, tl.trans(keys), total, input_precision="ieee")
    return total


@triton.jit
def _faded(scores, causal, token_decay, fading, first_token, key_token, has_key):
    """Scores of queries with the keys up to their own, by the decays between them and by what each
    key counts."""
    key_decay = tl.load(fading.faded + first_token + key_token, mask=has_key, other=0.0)
    key_weight = tl.load(fading.weight + first_token + key_token, mask=has_key, other=0.0)
    decay = tl.exp(tl.where(causal, token_decay[:, None] - key_decay[None, :], 0.0))
    decay *= key_weight[None, :]
    return tl.where(causal, scores * decay, 0.0)


@triton.jit(do_not_specialize=["num_rows", "at_most"])
def _read(
    snapshots,
    query,
    chains,
    fading,
    out,
    num_rows,
    at_most,
    layout,
    PAGE_SIZE: tl.constexpr,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    TOKENS: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    CHOSEN: tl.constexpr,
):
    """The outputs of a head's queries in one tile of a page. If CHOSEN, some rows have more than
    `at_most` new tokens, and are left out."""
    QUERY: tl.constexpr = HEADS // GROUP * KEY_DIM
    entry, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    value_tiles = tl.cdiv(VALUE_DIM, VALUES)
    tile = tl.program_id(2) // value_tiles * TOKENS
    page_number, first_query, first_new, end = chunks.page_of(chains, entry)
    if CHOSEN:
        row = chunks.row_of(entry, chains, num_rows)
        end = tl.where(chunks.count(chains, row) > at_most, 0, end)
    if tile < end and tile + TOKENS > first_new and first_new < end:
        token = tile + tl.arange(0, TOKENS)
        value, has_value = _part(tl.program_id(2) % value_tiles, VALUE_DIM, VALUES)
        is_new = (token >= first_new) & (token < end)
        page = snapshots.tokens + page_number * layout.page_stride
        first_token = (entry * HEADS + head) * PAGE_SIZE
        key_head = head // GROUP * KEY_DIM
        from_key = page + layout.key_at + key_head
        from_value = page + layout.value_at + head * VALUE_DIM
        from_query = query + (first_query - first_new) * QUERY + key_head
        state = snapshots.states + page_number * layout.state_stride + head * KEY_DIM * VALUE_DIM
        queries = (from_query, QUERY, token, is_new)
        from_state = _read_state(
            state, *queries, value, has_value, KEY_DIM, VALUE_DIM, TOKENS, KEYS, VALUES
        )
        token_decay = tl.load(fading.faded + first_token + token, mask=is_new, other=0.0)
        total = from_state * tl.exp(token_decay)[:, None]
        for key_tile in range(0, tile + TOKENS, TOKENS):
            key_token = key_tile + tl.arange(0, TOKENS)
            has_key_token = key_token < end
            keys = (from_key, layout.token_stride, key_token, has_key_token)
            scores = _scores(*queries, *keys, KEY_DIM, TOKENS, KEYS)
            causal = (key_token[None, :] <= token[:, None]) & is_new[:, None]
            scores = _faded(
                scores, causal, token_decay, fading, first_token, key_token, has_key_token
            )
            values = _rows(
                from_value, key_token, has_key_token, layout.token_stride, value, has_value
            )
            total = tl.dot(scores, values, total, input_precision="ieee")
        output_row = (first_query + token - first_new)[:, None] * HEADS + head
        mask = is_new[:, None] & has_value[None, :]
        tl.store(out + output_row * VALUE_DIM + value[None, :], total, mask=mask)


class TritonStates:
    """See `kernels.recurrent.ssm_states.Walker`: two launches for rows of few new tokens, one for
    those of many. How a row is computed depends on the row alone; if `exact`, all rows are computed
    as those of few tokens are."""

    def __init__(self, shape: Shape, *, exact: bool = False) -> None:
        self._shape, self._exact = shape, exact
        keys, values = (max(16, min(_MOST, power(dim))) for dim in (shape.key_dim, shape.value_dim))
        self._across = -(-shape.value_dim // values)
        self._constants: dict[str, Any] = {
            **{"HEADS": shape.heads, "GROUP": shape.heads // shape.groups, "TOKENS": _TOKENS},
            **{"KEY_DIM": shape.key_dim, "VALUE_DIM": shape.value_dim},
            **{"KEYS": keys, "VALUES": values},
        }

    def walk(self, snapshots: Snapshots, query: Tensor, chains: Chains, fading: Fading) -> Tensor:
        """See `Walker`."""
        shape, (tokens, states), query = self._shape, snapshots, query.float()
        expected = len(chains.pages), shape.heads, tokens.shape[1]
        assert all(part.shape == expected for part in fading)
        assert query.shape[1:] == (shape.groups, shape.key_dim)
        assert tokens.stride(-1) == 1 and states[0].is_contiguous()
        out = query.new_empty((len(query), shape.heads, shape.value_dim))
        contiguous = Chains(*(column.contiguous() for column in chains))
        faded = Fading(*(part.contiguous() for part in fading))
        parts = shape, snapshots, query.contiguous(), contiguous, faded, out
        steps = len(query), len(chains.starts), tokens.shape[1]
        for launch in chunks.launches(*steps, exact=self._exact):
            if launch.chunked:
                chunk_scan(*parts)
            else:
                self._walk(*parts, launch.at_most)
        return out

    def _walk(
        self,
        shape: Shape,
        snapshots: Snapshots,
        query: Tensor,
        chains: Chains,
        fading: Fading,
        out: Tensor,
        at_most: int,
    ) -> None:
        """See `chunk_scan`: of rows of `at_most` new tokens."""
        num_rows, size = len(chains.starts), snapshots.tokens.shape[1]
        layout = chunks.Layout.of(snapshots, shape.key, shape.value)
        constants = self._constants | {"PAGE_SIZE": size}
        if len(chains.pages) > num_rows:
            tiles = -(-shape.key_dim // constants["KEYS"]) * self._across
            carry: Any = _carry[(num_rows, shape.heads, tiles)]
            carry(snapshots, chains, fading, at_most, layout, **constants)
        read: Any = _read[(len(chains.pages), shape.heads, -(-size // _TOKENS) * self._across)]
        read(
            *(snapshots, query, chains, fading, out, num_rows, at_most, layout),
            CHOSEN=at_most < chunks.EVERY,
            **constants,
        )
