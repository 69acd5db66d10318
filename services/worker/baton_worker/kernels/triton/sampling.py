"""Logits to tokens: random numbers, temperature, truncation and the choice, without waiting for
the host.

A row's vocabulary is cut over programs, so that a few rows fill a GPU. Each launch has a program
for every tile of 4,096 tokens, and reads what the one before it has found of whole rows:

    _tops      the maximum of each tile
    _weigh     the row's maximum, and weights exp((x - max) / T); sums of 128 weights each
    narrow     twice for top-k: digits of the least weight that it keeps, see `radix_select`
    _cut       that weight, and the sums without those below it
    _reach     what the weights of the nucleus add up to
    narrow     twice for top-p
    _cut       the same for it
    _pick      the distribution function, inverted at the row's uniform

Without top-k and top-p in a step there are three launches; nothing depends on numbers that the host
would have to read. Random numbers have the bits of `sampling.uniform`. Weights are those of the CPU
to the last bits of an exponential, so a token could differ only where the uniform falls between two
such roundings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_worker.kernels.triton import power, radix_select

_FIRST = tl.constexpr(radix_select.FIRST)
_BLOCK = tl.constexpr(128)
"""Weights of one sum in float32; the sums are added in float64, as in `sampling.blocks`."""
_WIDEST = 4096
_WARPS = 8
_ALIGNED = 32
"""State of rows is a multiple of so many numbers, so that each entry begins at 16 bytes: Triton
would compile a kernel of its own for others."""


@triton.jit
def uniform(key_low, key_high, index):
    """float64 in (0, 1) of int64 keys and positions: Philox4x32-10, see `sampling.uniform`."""
    k0, k1 = key_low.to(tl.uint32), key_high.to(tl.uint32)
    c0, c1 = index.to(tl.uint32), (index >> 32).to(tl.uint32)
    c2, c3 = c0 ^ c0, c0 ^ c0
    for _ in tl.static_range(10):
        first, second = c0.to(tl.uint64) * 0xD2511F53, c2.to(tl.uint64) * 0xCD9E8D57
        c0 = (second >> 32).to(tl.uint32) ^ c1 ^ k0
        c2 = (first >> 32).to(tl.uint32) ^ c3 ^ k1
        c1, c3 = second.to(tl.uint32), first.to(tl.uint32)
        k0 = (k0.to(tl.uint64) + 0x9E3779B9).to(tl.uint32)
        k1 = (k1.to(tl.uint64) + 0xBB67AE85).to(tl.uint32)
    odd = (c0.to(tl.uint64) << 21) | ((c1 >> 12).to(tl.uint64) << 1) | 1
    return odd.to(tl.int64).to(tl.float64) * 1.1102230246251565e-16  # 2^-53


@triton.jit(do_not_specialize=["num_rows"])
def _tops(logits, tops, places, num_rows, vocab, tiles, ROWS: tl.constexpr, TILE: tl.constexpr):
    """The first maximum of a tile and its token, to [R, tiles] each; a NaN counts as infinite."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    is_row, start = row < num_rows, tl.program_id(1) * TILE
    token = start + tl.arange(0, TILE)
    mask = is_row[:, None] & (token < vocab)[None, :]
    logit = tl.load(logits + row[:, None] * vocab + token[None, :], mask=mask, other=float("-inf"))
    has_nan = tl.max((logit != logit).to(tl.int32), 1)
    maximum, index = tl.max(logit, 1, return_indices=True, return_indices_tie_break_left=True)
    target = row * tiles + tl.program_id(1)
    tl.store(tops + target, tl.where(has_nan > 0, float("inf"), maximum), mask=is_row)
    tl.store(places + target, start + index, mask=is_row)


@triton.jit
def _store_sums(sums, row, is_row, weight, least, blocks, ROWS: tl.constexpr, TILE: tl.constexpr):
    """By block of a tile of weights, the sum of those from `least` on: to [R, blocks]."""
    counted = tl.where(weight >= least[:, None], weight, 0.0)
    block_sums = tl.sum(tl.reshape(counted, (ROWS, TILE // _BLOCK, _BLOCK)), 2)
    block = tl.program_id(1) * (TILE // _BLOCK) + tl.arange(0, TILE // _BLOCK)
    inside = is_row[:, None] & (block < blocks)[None, :]
    tl.store(sums + row[:, None] * blocks + block[None, :], block_sums, mask=inside)


@triton.jit
def _row_maximum(tops, row, is_row, tiles, TILES: tl.constexpr):
    """The maximum of each row, the first tile that has it, and whether it is finite."""
    tile = tl.arange(0, TILES)
    source = row[:, None] * tiles + tile[None, :]
    tile_maxima = tl.load(
        tops + source, mask=is_row[:, None] & (tile < tiles)[None, :], other=float("-inf")
    )
    maximum, first_tile = tl.max(
        tile_maxima, 1, return_indices=True, return_indices_tie_break_left=True
    )
    return maximum, first_tile, (maximum < float("inf")) & (maximum > float("-inf"))


@triton.jit
def _store_rows(tokens, finite, least, wanted, row, is_row, token, is_finite, lowest, limit):
    """The results of whole rows that do not depend on their weights."""
    tl.store(tokens + row, token, mask=is_row)
    tl.store(finite + row, is_finite.to(tl.int8), mask=is_row)
    tl.store(least + row, lowest, mask=is_row)
    tl.store(wanted + row, limit, mask=is_row)


@triton.jit(do_not_specialize=["num_rows", "has_top_k", "has_top_p"])
def _weigh(
    logits,
    tops,
    places,
    warmth,
    top_k,
    top_p,
    min_p,
    greedy,
    weights,
    sums,
    least,
    wanted,
    counts,
    masses,
    tokens,
    finite,
    num_rows,
    vocab,
    tiles,
    blocks,
    has_top_k,
    has_top_p,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    TILES: tl.constexpr,
):
    """The first maximum of each row to `tokens`, and to `finite` whether it is finite and there is
    no NaN. A tile of weights, of which the maximum has 1, and what follows from them: sums by block
    from min-p on, and the first histograms of top-k and top-p where rows have them."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    is_row = row < num_rows
    maximum, first_tile, is_finite = _row_maximum(tops, row, is_row, tiles, TILES)
    is_drawn = is_row & (tl.load(greedy + row, mask=is_row, other=1) == 0)
    lowest = tl.load(min_p + row, mask=is_drawn, other=0.0).to(tl.float32)
    row_top_k = tl.load(top_k + row, mask=is_drawn, other=0)
    has_limit = (row_top_k > 0) & (row_top_k < vocab)
    if tl.program_id(1) == 0:
        token = tl.load(places + row * tiles + first_tile, mask=is_row, other=0)
        limit = tl.where(has_limit, row_top_k, 0)
        _store_rows(tokens, finite, least, wanted, row, is_row, token, is_finite, lowest, limit)
    if tl.max(is_drawn.to(tl.int32), 0) == 0:
        return
    inverse_temperature = tl.load(warmth + row, mask=is_drawn, other=1.0)
    maximum = tl.where(is_drawn & is_finite, maximum, 0.0)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    mask = is_drawn[:, None] & (column < vocab)[None, :]
    offset = row[:, None] * vocab + column[None, :]
    logit = tl.load(logits + offset, mask=mask, other=float("-inf"))
    # The maximum goes first, so that no temperature can overflow.
    weight = tl.where(
        is_finite[:, None], tl.exp((logit - maximum[:, None]) * inverse_temperature[:, None]), 0.0
    )
    tl.store(weights + offset, weight, mask=mask)
    _store_sums(sums, row, is_drawn, weight, lowest, blocks, ROWS, TILE)
    no_prefix = tl.full((ROWS,), 0, tl.int32)
    if has_top_k:
        radix_select.add(counts, row, weight, has_limit, no_prefix, _FIRST, 1)
    if has_top_p:
        row_top_p = tl.load(top_p + row, mask=is_drawn, other=1.0)
        radix_select.add(masses, row, weight, row_top_p < 1.0, no_prefix, _FIRST, 0)


@triton.jit(do_not_specialize=["num_rows"])
def _cut(
    weights,
    histogram,
    prefix,
    wanted,
    least,
    next_least,
    sums,
    num_rows,
    vocab,
    blocks,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
):
    """The least weight after a select to `next_least`, and the sums of a tile from it on."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    is_row = row < num_rows
    selected = radix_select.threshold(histogram, prefix, wanted, row, is_row)
    lowest = tl.maximum(tl.load(least + row, mask=is_row, other=0.0), selected)
    if tl.program_id(1) == 0:
        tl.store(next_least + row, lowest, mask=is_row)
    changed = selected > 0.0
    if tl.max(changed.to(tl.int32), 0) == 0:
        return
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    mask = changed[:, None] & (column < vocab)[None, :]
    weight = tl.load(weights + row[:, None] * vocab + column[None, :], mask=mask, other=0.0)
    _store_sums(sums, row, changed, weight, lowest, blocks, ROWS, TILE)


@triton.jit
def _all_sums(sums, row, is_row, blocks, BLOCKS: tl.constexpr):
    """Those of a row, float64 [ROWS, BLOCKS]."""
    block = tl.arange(0, BLOCKS)
    inside = is_row[:, None] & (block < blocks)[None, :]
    return tl.load(sums + row[:, None] * blocks + block[None, :], mask=inside, other=0.0).to(
        tl.float64
    )


@triton.jit(do_not_specialize=["num_rows"])
def _reach(sums, top_p, greedy, wanted, num_rows, blocks, ROWS: tl.constexpr, BLOCKS: tl.constexpr):
    """Store the mass of the nucleus of each row to `wanted`; 0 where there is none."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    is_row = row < num_rows
    is_drawn = is_row & (tl.load(greedy + row, mask=is_row, other=1) == 0)
    row_top_p = tl.load(top_p + row, mask=is_drawn, other=1.0)
    total = tl.sum(_all_sums(sums, row, is_drawn & (row_top_p < 1.0), blocks, BLOCKS), 1)
    tl.store(
        wanted + row,
        tl.where(row_top_p < 1.0, radix_select.amount(row_top_p * total), 0),
        mask=is_row,
    )


@triton.jit
def _below(x):
    """The float64 before a positive one."""
    return (x.to(tl.int64, bitcast=True) - 1).to(tl.float64, bitcast=True)


@triton.jit(do_not_specialize=["num_rows"])
def _pick(
    weights,
    sums,
    least,
    key_low,
    key_high,
    index,
    greedy,
    tokens,
    num_rows,
    vocab,
    blocks,
    ROWS: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Each row's token by the inverse of its distribution function, unless it is greedy."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    is_drawn = row < num_rows
    is_drawn = is_drawn & (tl.load(greedy + row, mask=is_drawn, other=1) == 0)
    if tl.max(is_drawn.to(tl.int32), 0) == 0:
        return
    block_cumsum = tl.cumsum(_all_sums(sums, row, is_drawn, blocks, BLOCKS), 1)
    total = tl.where(is_drawn, tl.max(block_cumsum, 1), 1.0)
    draw = uniform(
        tl.load(key_low + row, mask=is_drawn, other=0),
        tl.load(key_high + row, mask=is_drawn, other=0),
        tl.load(index + row, mask=is_drawn, other=0),
    )
    target = draw * total
    # Whatever the rounding, the last block exceeds.
    limit = tl.minimum(target, _below(total))
    is_before = (block_cumsum <= limit[:, None]) & (tl.arange(0, BLOCKS) < blocks)[None, :]
    block = tl.sum(is_before.to(tl.int32), 1)
    mass_before = tl.max(tl.where(is_before, block_cumsum, 0.0), 1)

    column = block[:, None] * _BLOCK + tl.arange(0, _BLOCK)[None, :]
    source = weights + row[:, None] * vocab + column
    weight = tl.load(source, mask=is_drawn[:, None] & (column < vocab), other=0.0)
    lowest = tl.load(least + row, mask=is_drawn, other=0.0)
    weight = tl.where(weight >= lowest[:, None], weight, 0.0)
    token_cumsum = tl.cumsum(weight.to(tl.float64), 1)
    limit = tl.minimum(
        target - mass_before, _below(tl.where(is_drawn, tl.max(token_cumsum, 1), 1.0))
    )
    token_in_block = tl.sum((token_cumsum <= limit[:, None]).to(tl.int32), 1)
    tl.store(tokens + row, block * _BLOCK + token_in_block, mask=is_drawn)


@dataclass(frozen=True, slots=True)
class _Grid:
    """The grid of programs of `rows` rows over [count, vocab] numbers."""

    count: int
    vocab: int
    rows: int

    @property
    def tile(self) -> int:
        """Tokens of one program."""
        return min(_WIDEST, max(128, power(self.vocab)))

    @property
    def tiles(self) -> int:
        """Programs of a row."""
        return -(-self.vocab // self.tile)

    @property
    def blocks(self) -> int:
        """Sums of a row."""
        blocks: int = -(-self.vocab // _BLOCK.value)
        return blocks

    def over_tiles(self, kernel: Any, *arguments: Any, **constants: Any) -> None:
        """Launch a kernel with a program for each tile."""
        grid = (triton.cdiv(self.count, self.rows), self.tiles)
        kernel[grid](*arguments, ROWS=self.rows, TILE=self.tile, num_warps=_WARPS, **constants)

    def over_rows(self, kernel: Any, *arguments: Any) -> None:
        """Launch a kernel with a program for each row."""
        grid = (triton.cdiv(self.count, self.rows),)
        kernel[grid](*arguments, ROWS=self.rows, BLOCKS=power(self.blocks), num_warps=_WARPS)


class _Truncation:
    """State of the launches of a step: the least weights of its rows."""

    def __init__(self, grid: _Grid, weights: Tensor, sums: Tensor, *, selects: int) -> None:
        self._grid, self._weights, self._sums = grid, weights, sums
        device, count = weights.device, -(-grid.count // _ALIGNED) * _ALIGNED
        entries, bins = selects * radix_select.DIGITS, radix_select.BINS
        self.histograms = torch.zeros(
            (max(1, entries), grid.count, bins) if entries else (1, 1, bins),
            dtype=torch.int64,
            device=device,
        )
        self._prefix = torch.zeros((max(1, entries), count), dtype=torch.int32, device=device)
        self.wanted = torch.zeros((max(1, entries), count), dtype=torch.int64, device=device)
        self._least = torch.empty((1 + selects, count), dtype=torch.float32, device=device)
        self._done = 0

    @property
    def least(self) -> Tensor:
        """float32 [R] and more: the least weight that is kept so far."""
        return self._least[self._done]

    def select(self, *, counted: bool) -> None:
        """Raise the least weights. The first entries of this select are in `wanted`, which is what
        is `counted` or what it adds up to, and in its histogram."""
        grid, first = self._grid, self._done * radix_select.DIGITS
        for entry in range(first, first + radix_select.DIGITS - 1):
            shift = radix_select.FIRST - 10 * (entry - first + 1)
            grid.over_tiles(
                radix_select.narrow,
                *(self._weights, *self._entry(entry), *self._entry(entry + 1)),
                *(grid.count, grid.vocab, shift, int(counted)),
            )
        last = (*self._entry(first + radix_select.DIGITS - 1), self.least)
        self._done += 1
        sizes = (grid.count, grid.vocab, grid.blocks)
        grid.over_tiles(_cut, self._weights, *last, self.least, self._sums, *sizes)

    def _entry(self, entry: int) -> tuple[Tensor, Tensor, Tensor]:
        return self.histograms[entry], self._prefix[entry], self.wanted[entry]


def sample(
    logits: Tensor,
    *,
    warmth: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    greedy: Tensor,
    key_low: Tensor,
    key_high: Tensor,
    index: Tensor,
    rows: int = 1,
    has_top_k: bool = True,
    has_top_p: bool = True,
) -> tuple[Tensor, Tensor]:
    """One token per row, int32 [R]; the twin is `sampling.sampler.sample`. And whether the logits
    of each row are finite, int8 [R]: without NaN and +inf, and not all -inf. Where they are not,
    the token is any number.

    Args:
        logits: float32 [R, V].
        warmth: float32 [R], 1 / temperature; of greedy rows any number.
        top_p, min_p: float64 [R].
        top_k, key_low, key_high, index: int64 [R].
        greedy: int8 [R], 0 or 1.
        rows: rows of one program; more programs occupy more of the GPU.
        has_top_k, has_top_p: whether any row needs it, known on the host; launches are saved where
            none does.
    """
    logits, (count, vocab) = logits.contiguous(), logits.shape
    grid = _Grid(count, vocab, rows)
    tokens, finite = (logits.new_empty(count, dtype=kind) for kind in (torch.int32, torch.int8))
    tops, places = (
        logits.new_empty((count, grid.tiles), dtype=kind) for kind in (torch.float32, torch.int32)
    )
    weights, sums = torch.empty_like(logits), logits.new_empty((count, grid.blocks))
    truncation = _Truncation(grid, weights, sums, selects=has_top_k + has_top_p)
    masses = truncation.histograms[radix_select.DIGITS if has_top_k and has_top_p else 0]
    grid.over_tiles(_tops, logits, tops, places, count, vocab, grid.tiles)
    grid.over_tiles(
        _weigh,
        *(logits, tops, places, warmth, top_k, top_p, min_p, greedy, weights, sums),
        *(truncation.least, truncation.wanted[0], truncation.histograms[0], masses),
        *(tokens, finite, count, vocab, grid.tiles, grid.blocks, int(has_top_k), int(has_top_p)),
        TILES=power(grid.tiles),
    )
    if has_top_k:
        truncation.select(counted=True)
    if has_top_p:
        wanted = truncation.wanted[radix_select.DIGITS if has_top_k else 0]
        grid.over_rows(_reach, sums, top_p, greedy, wanted, count, grid.blocks)
        truncation.select(counted=False)
    grid.over_rows(
        _pick,
        *(weights, sums, truncation.least, key_low, key_high, index, greedy, tokens),
        *(count, vocab, grid.blocks),
    )
    return tokens, finite
