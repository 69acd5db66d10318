"""State updates of state-space layers; the twin is `kernels.recurrent.ssm_states.PlainStates`.

A program has a tile of tokens of one head, always at the same place of its page, and sums in
float32. So the bits of a token depend neither on other pages nor on which of its page's tokens are
new.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_worker.kernels import triton as kernels
from baton_worker.kernels.recurrent.ssm_states import Chains, Fading, Shape, Snapshots

TOKENS = 16
"""Tokens of a tile."""
_MOST = 64
"""Channels of a tile, at most."""


@triton.jit
def _rows(page, token, there, token_stride, channel, inside):  # type: ignore[no-untyped-def]
    """Channels of some tokens of a page, float32; zeros where there is none."""
    at = page + token[:, None] * token_stride + channel[None, :]
    mask = there[:, None] & inside[None, :]
    return tl.load(at, mask=mask, other=0.0).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _carry(  # type: ignore[no-untyped-def]
    tokens,
    states,
    starts,
    stops,
    pages,
    faded,
    weight,
    page_stride,
    token_stride,
    state_stride,
    key_at,
    value_at,
    PAGE_SIZE: tl.constexpr,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    TOKENS: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
):
    """A tile of a head's state, along the pages of one sequence that begin: each from the page
    before it."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    across = tl.cdiv(VALUE_DIM, VALUES)
    key = tl.program_id(2) // across * KEYS + tl.arange(0, KEYS)
    value = tl.program_id(2) % across * VALUES + tl.arange(0, VALUES)
    has_key, has_value = key < KEY_DIM, value < VALUE_DIM
    inside = has_key[:, None] & has_value[None, :]
    place = (head * KEY_DIM + key[:, None]) * VALUE_DIM + value[None, :]
    start, stop = tl.load(starts + row), tl.load(stops + row)
    if stop - start > 1:
        given = states + tl.load(pages + start) * state_stride
        state = tl.load(given + place, mask=inside, other=0.0)
        for item in range(start, stop - 1):
            page = tokens + tl.load(pages + item) * page_stride
            fading = (item * HEADS + head) * PAGE_SIZE
            last = tl.load(faded + fading + PAGE_SIZE - 1)
            state *= tl.exp(last)
            for first in range(0, PAGE_SIZE, TOKENS):
                token = first + tl.arange(0, TOKENS)
                there = token < PAGE_SIZE
                left = tl.exp(last - tl.load(faded + fading + token, mask=there, other=0.0))
                left *= tl.load(weight + fading + token, mask=there, other=0.0)
                from_key = page + key_at + head // GROUP * KEY_DIM
                keys = _rows(from_key, token, there, token_stride, key, has_key) * left[:, None]
                from_value = page + value_at + head * VALUE_DIM
                values = _rows(from_value, token, there, token_stride, value, has_value)
                state = tl.dot(tl.trans(keys), values, state, input_precision="ieee")
            target = states + tl.load(pages + item + 1) * state_stride
            tl.store(target + place, state, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _read(  # type: ignore[no-untyped-def]
    tokens,
    states,
    query,
    pages,
    begins,
    firsts,
    faded,
    weight,
    out,
    page_stride,
    token_stride,
    state_stride,
    key_at,
    value_at,
    PAGE_SIZE: tl.constexpr,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    TOKENS: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
):
    """The outputs of a head's queries in one tile of a page."""
    block, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    across = tl.cdiv(VALUE_DIM, VALUES)
    tile = tl.program_id(2) // across * TOKENS
    value = tl.program_id(2) % across * VALUES + tl.arange(0, VALUES)
    begin, first = tl.load(begins + block), tl.load(firsts + block)
    end = first + tl.load(begins + block + 1) - begin
    if end > first and tile < end and tile + TOKENS > first:
        token, has_value = tile + tl.arange(0, TOKENS), value < VALUE_DIM
        asked = (token >= first) & (token < end)
        number = tl.load(pages + block)
        page, fading = tokens + number * page_stride, (block * HEADS + head) * PAGE_SIZE
        group = head // GROUP
        from_key = page + key_at + group * KEY_DIM
        from_value = page + value_at + head * VALUE_DIM
        from_query = query + ((begin - first) * (HEADS // GROUP) + group) * KEY_DIM
        state = states + number * state_stride + head * KEY_DIM * VALUE_DIM
        carried = tl.zeros((TOKENS, VALUES), tl.float32)
        for some in range(0, KEY_DIM, KEYS):
            key = some + tl.arange(0, KEYS)
            has_key = key < KEY_DIM
            rows = _rows(from_query, token, asked, HEADS // GROUP * KEY_DIM, key, has_key)
            inside = has_key[:, None] & has_value[None, :]
            at = state + key[:, None] * VALUE_DIM + value[None, :]
            kept = tl.load(at, mask=inside, other=0.0)
            carried = tl.dot(rows, kept, carried, input_precision="ieee")
        here = tl.load(faded + fading + token, mask=asked, other=0.0)
        total = carried * tl.exp(here)[:, None]
        for earlier in range(0, tile + TOKENS, TOKENS):
            other = earlier + tl.arange(0, TOKENS)
            there = other < end
            scores = tl.zeros((TOKENS, TOKENS), tl.float32)
            for some in range(0, KEY_DIM, KEYS):
                key = some + tl.arange(0, KEYS)
                has_key = key < KEY_DIM
                rows = _rows(from_query, token, asked, HEADS // GROUP * KEY_DIM, key, has_key)
                keys = _rows(from_key, other, there, token_stride, key, has_key)
                scores = tl.dot(rows, tl.trans(keys), scores, input_precision="ieee")
            then = tl.load(faded + fading + other, mask=there, other=0.0)
            counts = tl.load(weight + fading + other, mask=there, other=0.0)
            seen = (other[None, :] <= token[:, None]) & asked[:, None]
            left = tl.exp(tl.where(seen, here[:, None] - then[None, :], 0.0)) * counts[None, :]
            values = _rows(from_value, other, there, token_stride, value, has_value)
            scores = tl.where(seen, scores * left, 0.0)
            total = tl.dot(scores, values, total, input_precision="ieee")
        row = (begin + token - first)[:, None] * HEADS + head
        mask = asked[:, None] & has_value[None, :]
        tl.store(out + row * VALUE_DIM + value[None, :], total, mask=mask)


class TritonStates:
    """See `kernels.recurrent.ssm_states.Walker`: one launch for pages that begin, and one for all
    queries."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        keys, values = (
            max(16, min(_MOST, kernels.power(dim))) for dim in (shape.key_dim, shape.value_dim)
        )
        self._constants: dict[str, Any] = {
            **{"HEADS": shape.heads, "GROUP": shape.heads // shape.groups, "TOKENS": TOKENS},
            **{"KEY_DIM": shape.key_dim, "VALUE_DIM": shape.value_dim},
            **{"KEYS": keys, "VALUES": values},
        }

    def walk(self, kept: Snapshots, query: Tensor, chains: Chains, fading: Fading) -> Tensor:
        """See `Walker`."""
        fading = Fading(*(part.contiguous() for part in fading))
        self._carry(kept, chains, fading)
        return self._read(kept, query, chains, fading)

    def _carry(self, kept: Snapshots, chains: Chains, fading: Fading) -> None:
        shape, constants = self._shape, self._constants
        tiles = -(-shape.key_dim // constants["KEYS"]) * -(-shape.value_dim // constants["VALUES"])
        if not len(chains.starts):
            return
        launch: Any = _carry[(len(chains.starts), shape.heads, tiles)]
        launch(
            *(kept.tokens, kept.states, *chains[:3], *fading),
            *self._layout(kept),
            PAGE_SIZE=kept.tokens.shape[1],
            **constants,
        )

    def _read(self, kept: Snapshots, query: Tensor, chains: Chains, fading: Fading) -> Tensor:
        shape, constants, size = self._shape, self._constants, kept.tokens.shape[1]
        out = query.new_empty((len(query), shape.heads, shape.value_dim))
        assert query.dtype is torch.float32 and query.shape[1:] == (shape.groups, shape.key_dim)
        if not len(query):
            return out
        tiles = -(-size // TOKENS) * -(-shape.value_dim // constants["VALUES"])
        launch: Any = _read[(len(chains.pages), shape.heads, tiles)]
        launch(
            *(kept.tokens, kept.states, query.contiguous()),
            *(chains.pages, chains.begins, chains.firsts, *fading),
            *(out, *self._layout(kept)),
            PAGE_SIZE=size,
            **constants,
        )
        return out

    def _layout(self, kept: Snapshots) -> tuple[int, ...]:
        tokens, states = kept
        assert tokens.stride(-1) == 1 and states[0].is_contiguous()
        strides = tokens.stride(0), tokens.stride(1), states.stride(0)
        return *strides, self._shape.key, self._shape.value
