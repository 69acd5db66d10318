"""Rows of a step that are scanned in chunks on tensor cores, and those that are scanned token by
token."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_worker.kernels.recurrent.ssm_states import Snapshots
from baton_worker.kernels.triton import power

_LEAST = 32
"""New tokens of a row from which on it is scanned in chunks, if a page has no more."""
VALUES = 32
"""Value channels of a program, at most: a head's state with them fits into registers."""
_TOKENS = 64
"""Of a chunk, at most: those of a tile of a group of warps."""
_FEWEST = 16
"""Tokens of the smallest product."""
EVERY = 1 << 30
"""More new tokens than a row may have."""
_PRECISION = {torch.float32: "tf32x3", torch.float16: "tf32"}
"""Of numbers that are multiplied as float32: three products of 10 bits, or of float16, which has
no more, one; its own sums of products would overflow."""


class Layout(NamedTuple):
    """Offsets of the keys and values of tokens, and of states, in pages; in numbers."""

    page_stride: int
    token_stride: int
    state_stride: int
    key_at: int
    value_at: int

    @classmethod
    def of(cls, snapshots: Snapshots, key_at: int, value_at: int) -> Layout:
        """The layout of a layer whose keys and values begin at these channels of a token's row."""
        tokens, states = snapshots
        return cls(tokens.stride(0), tokens.stride(1), states.stride(0), key_at, value_at)


class Launch(NamedTuple):
    """The rows of a step that a kernel takes."""

    chunked: bool
    """Those of `least` new tokens and more."""
    at_most: int
    """Most new tokens of a row that is scanned token by token."""


def least(page_size: int) -> int:
    """Fewest new tokens of a row that is scanned in chunks: so many that its pages, also those that
    it has in part, are not many more than its tokens fill."""
    return max(_LEAST, page_size)


def launches(num_tokens: int, num_rows: int, page_size: int, *, exact: bool) -> list[Launch]:
    """One for rows of few new tokens, and one for those of many, if there may be such: the host has
    only these bounds of a step. `exact`: a token has the same bits in both, so one launch takes all
    rows."""
    if not num_tokens:
        return []
    fewest, decode = least(page_size), num_tokens == num_rows
    if exact or decode or num_tokens < fewest:
        return [Launch(False, EVERY)]
    long = Launch(True, EVERY)
    return [long] if num_rows == 1 else [Launch(False, fewest - 1), long]


def form(pages: Tensor, most: int = _TOKENS) -> dict[str, Any]:
    """Tokens of a chunk, which is a part of a page, and how its numbers are multiplied."""
    narrow = pages.dtype is torch.bfloat16
    most = most if narrow else most // 2
    return {
        "TOKENS": max(_FEWEST, min(most, power(pages.shape[1]))),
        "NARROW": narrow,
        "PRECISION": "ieee" if narrow else _PRECISION[pages.dtype],
    }


def rooms(num_tokens: int, page_size: int) -> int:
    """Pages that rows in chunks have room for, see `room`."""
    fewest = least(page_size)
    return num_tokens * (fewest + 2 * page_size) // (page_size * fewest) + 1


@triton.jit
def count(chains, row):
    """New tokens of a row."""
    first, last = tl.load(chains.starts + row), tl.load(chains.stops + row)
    return tl.load(chains.begins + last) - tl.load(chains.begins + first)


@triton.jit
def page_of(chains, item):
    """Of an entry of `chains`: its page, its first query, the offset in the page of that query, and
    the end of the queries."""
    number = tl.load(chains.pages + item)
    first, begin = tl.load(chains.firsts + item), tl.load(chains.begins + item)
    return number, begin, first, first + tl.load(chains.begins + item + 1) - begin


@triton.jit
def page_of_row(chains, item, stop, PAGE_SIZE: tl.constexpr):
    """The same where the pages of a row end at `stop`, with the end of the tokens that there are:
    only the last page is not full."""
    number, begin, first, end = page_of(chains, item)
    return number, begin, first, tl.where(item + 1 < stop, PAGE_SIZE, end)


@triton.jit
def row_of(item, chains, num_rows):
    """The row that the page `item` of the chains is of."""
    low, high = 0, num_rows - 1
    while low < high:
        middle = (low + high + 1) // 2
        before = tl.load(chains.starts + middle) <= item
        low = tl.where(before, middle, low)
        high = tl.where(before, high, middle - 1)
    return low


@triton.jit
def room(chains, row, PAGE_SIZE: tl.constexpr, LEAST: tl.constexpr):
    """Index of the first page of a row in chunks among those of all such rows. A row of n tokens
    has n / PAGE_SIZE + 2 pages at most, and n is at least LEAST: so there is room for them,
    wherever other rows begin."""
    begin = tl.load(chains.begins + tl.load(chains.starts + row))
    return begin * (LEAST + 2 * PAGE_SIZE) // (PAGE_SIZE * LEAST)


@triton.jit
def row_with_room(page, chains, num_rows, PAGE_SIZE: tl.constexpr, LEAST: tl.constexpr):
    """The row that has the room of `page`, if one has."""
    low, high = 0, num_rows - 1
    while low < high:
        middle = (low + high + 1) // 2
        before = room(chains, middle, PAGE_SIZE, LEAST) <= page
        low = tl.where(before, middle, low)
        high = tl.where(before, high, middle - 1)
    return low


@triton.jit
def steps(start, stop, chains, BLOCKS: tl.constexpr, TOKENS: tl.constexpr):
    """Chunks of a chain of pages: those of whole pages, and of the last one up to its end."""
    _, _, _, end = page_of(chains, stop - 1)
    return (stop - 1 - start) * BLOCKS + tl.cdiv(end, TOKENS)


@triton.jit
def rows_of(base, token, is_token, token_stride, channel, has_channel):
    """Channels of some tokens; zeros where there is none."""
    offset = token[:, None] * token_stride + channel[None, :]
    return tl.load(base + offset, mask=is_token[:, None] & has_channel[None, :], other=0.0)


@triton.jit
def chunk_of_row(chains, step, start, stop, BLOCKS: tl.constexpr, PAGE_SIZE: tl.constexpr):
    """Of the chunk `step` of a row: the entry of its page in `chains`, its number in that page, the
    page, the query that the first token of the page would have, the first token that has one, and
    the end of the tokens."""
    index = start * BLOCKS + step
    entry, chunk = index // BLOCKS, (index % BLOCKS).to(tl.int32)
    page, first_query, first_new, end = page_of_row(chains, entry, stop, PAGE_SIZE)
    return entry, chunk, page, first_query - first_new, first_new, end.to(tl.int32)


@triton.jit
def store_state(page_state, state, inside, entry, start, chunk):
    """Store the state before a page there, as the page begins; the first page of a row has it."""
    starts_page = (entry > start) & (chunk == 0)
    tl.store(page_state, state, mask=tl.where(starts_page, inside, False))


@triton.jit
def store_outputs(
    out,
    outputs,
    first_query,
    token,
    is_new,
    head,
    value,
    HEADS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
):
    """Store the outputs of the tokens of a page that have queries."""
    OUT: tl.constexpr = HEADS * VALUE_DIM
    target = out + first_query * OUT + head * VALUE_DIM
    target += token[:, None] * OUT + value[None, :]
    tl.store(target, outputs, mask=is_new[:, None] & (value < VALUE_DIM)[None, :])
