"""Logits to tokens: random numbers, temperature, truncation and the choice, without waiting for
the host.

Two launches. The first finds each row's maximum and turns logits into weights, exp((x - max) / T);
the second finds the least weight that top-k, min-p and top-p keep, among the bits of floats as
`sampling.truncation` does, then inverts the distribution function at the row's uniform. No sort, no
host: a wide nucleus costs what a narrow one does.

A row has one program of as many threads as there may be, and each pass over its weights, which stay
in the L2 cache, looks at three thresholds: 15 passes find one of 30 bits. Programs that share a row
would have to be launched again for each pass.

Random numbers have the bits of `sampling.uniform`. Weights are those of the CPU to the last bits of
an exponential, so a token could differ only where the uniform falls between two such roundings.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_worker.kernels.triton import power

_BLOCK = tl.constexpr(128)
"""Weights of one sum in float32; the sums are added in float64, as in `sampling.blocks`."""
_WIDEST = 4096
_WARPS = 32
_PASSES = tl.constexpr(15)
"""Of a search: each leaves a quarter of the numbers up to `_ONE`."""
_ONE = tl.constexpr(0x3F800000)
"""The bits of 1.0, the greatest weight."""


@triton.jit
def uniform(key_low, key_high, index):  # type: ignore[no-untyped-def]
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


@triton.jit(do_not_specialize=["num_rows"])  # type: ignore[untyped-decorator]
def _weigh(  # type: ignore[no-untyped-def]
    logits,
    warmth,
    weights,
    tokens,
    finite,
    num_rows,
    vocab,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
):
    """The first maximum of each row to `tokens`, and weights, of which it has 1; to `finite`
    whether it is finite and there is no NaN."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    real = row < num_rows
    i = tl.arange(0, TILE)
    most = tl.full((ROWS,), float("-inf"), tl.float32)
    best = tl.full((ROWS,), 0, tl.int32)
    odd = tl.full((ROWS,), 0, tl.int32)
    for start in range(0, vocab, TILE):
        seen = real[:, None] & (start + i < vocab)[None, :]
        at = logits + row[:, None] * vocab + start + i[None, :]
        x = tl.load(at, mask=seen, other=float("-inf"))
        odd = tl.maximum(odd, tl.max((x != x).to(tl.int32), 1))
        here, index = tl.max(x, 1, return_indices=True, return_indices_tie_break_left=True)
        best = tl.where(here > most, start + index, best)
        most = tl.maximum(most, here)
    tl.store(tokens + row, best, mask=real)
    good = (odd == 0) & (most < float("inf")) & (most > float("-inf"))
    tl.store(finite + row, good.to(tl.int8), mask=real)
    warm = tl.load(warmth + row, mask=real, other=1.0)
    most = tl.where(real & good, most, 0.0)
    for start in range(0, vocab, TILE):
        seen = real[:, None] & (start + i < vocab)[None, :]
        at = row[:, None] * vocab + start + i[None, :]
        x = tl.load(logits + at, mask=seen, other=float("-inf"))
        # The maximum goes first, so that no temperature can overflow.
        tl.store(weights + at, tl.exp((x - most[:, None]) * warm[:, None]), mask=seen)


@triton.jit  # type: ignore[untyped-decorator]
def _kept(  # type: ignore[no-untyped-def]
    weights, row, real, start, vocab, least, ROWS: tl.constexpr, TILE: tl.constexpr
):
    """A tile [ROWS, TILE] of weights, 0 below `least`."""
    i = start + tl.arange(0, TILE)
    seen = real[:, None] & (i < vocab)[None, :]
    weight = tl.load(weights + row[:, None] * vocab + i[None, :], mask=seen, other=0.0)
    return tl.where(weight >= least[:, None], weight, 0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _sums(  # type: ignore[no-untyped-def]
    weights, row, real, start, vocab, least, before, ROWS: tl.constexpr, TILE: tl.constexpr
):
    """Running sums up to each block of a tile, float64 [ROWS, TILE / BLOCK]; see
    `_BLOCK`."""
    weight = _kept(weights, row, real, start, vocab, least, ROWS, TILE)
    sums = tl.sum(tl.reshape(weight, (ROWS, TILE // _BLOCK, _BLOCK)), 2).to(tl.float64)
    return tl.cumsum(sums, 1) + before[:, None]


@triton.jit  # type: ignore[untyped-decorator]
def _above(weight, least, COUNTED: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """By block of a tile, float64 [ROWS, TILE / BLOCK]: how many weights are not below `least`, or
    what they add up to."""
    kept = tl.where(weight >= least[:, None], tl.where(COUNTED, 1.0, weight), 0.0)
    return tl.sum(tl.reshape(kept, (ROWS, TILE // _BLOCK, _BLOCK)), 2).to(tl.float64)


@triton.jit  # type: ignore[untyped-decorator]
def _masses(  # type: ignore[no-untyped-def]
    weights,
    row,
    real,
    vocab,
    one,
    two,
    three,
    COUNTED: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
):
    """What the weights from each of three thresholds on add up to, or how many they are, float64
    [ROWS] each."""
    first = tl.full((ROWS, TILE // _BLOCK), 0.0, tl.float64)
    second, third = first, first
    i = tl.arange(0, TILE)
    for start in range(0, vocab, TILE):
        seen = real[:, None] & (start + i < vocab)[None, :]
        at = weights + row[:, None] * vocab + start + i[None, :]
        weight = tl.load(at, mask=seen, other=-1.0)
        first += _above(weight, one, COUNTED, ROWS, TILE)
        second += _above(weight, two, COUNTED, ROWS, TILE)
        third += _above(weight, three, COUNTED, ROWS, TILE)
    return tl.sum(first, 1), tl.sum(second, 1), tl.sum(third, 1)


@triton.jit  # type: ignore[untyped-decorator]
def _search(  # type: ignore[no-untyped-def]
    weights,
    row,
    real,
    vocab,
    least,
    target,
    COUNTED: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
):
    """The greatest threshold from which on weights, those below `least` left out, add up to the
    `target` or are as many. Weights are not negative, so they are ordered as their bits are."""
    low, high = tl.full((ROWS,), 0, tl.int32), tl.full((ROWS,), _ONE + 1, tl.int32)
    for _ in range(_PASSES):
        step = (high - low + 3) // 4
        one = tl.minimum(low + step, high - 1)
        two, three = tl.minimum(one + step, high - 1), tl.minimum(one + 2 * step, high - 1)
        first, second, third = _masses(
            weights,
            row,
            real,
            vocab,
            tl.maximum(one.to(tl.float32, bitcast=True), least),
            tl.maximum(two.to(tl.float32, bitcast=True), least),
            tl.maximum(three.to(tl.float32, bitcast=True), least),
            COUNTED,
            ROWS,
            TILE,
        )
        a, b, c = first >= target, second >= target, third >= target
        high = tl.where(c, high, tl.where(b, three, tl.where(a, two, one)))
        low = tl.where(c, three, tl.where(b, two, tl.where(a, one, low)))
    return tl.maximum(low.to(tl.float32, bitcast=True), least)


@triton.jit  # type: ignore[untyped-decorator]
def _mass(  # type: ignore[no-untyped-def]
    weights, row, real, vocab, least, ROWS: tl.constexpr, TILE: tl.constexpr
):
    """What the weights from `least` on add up to, float64 [ROWS]."""
    total = tl.full((ROWS,), 0.0, tl.float64)
    for start in range(0, vocab, TILE):
        # The last running sum is the greatest.
        total = tl.max(_sums(weights, row, real, start, vocab, least, total, ROWS, TILE), 1)
    return total


@triton.jit
def _below(x):  # type: ignore[no-untyped-def]
    """The float64 before a positive one."""
    return (x.to(tl.int64, bitcast=True) - 1).to(tl.float64, bitcast=True)


@triton.jit(do_not_specialize=["num_rows"])  # type: ignore[untyped-decorator]
def _choose(  # type: ignore[no-untyped-def]
    weights,
    key_low,
    key_high,
    index,
    top_k,
    top_p,
    min_p,
    greedy,
    tokens,
    num_rows,
    vocab,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Each row's token by the inverse of its distribution function, unless it is greedy."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    real = row < num_rows
    real = real & (tl.load(greedy + row, mask=real, other=1) == 0)
    if tl.max(real.to(tl.int32), 0) == 0:
        return
    least = tl.load(min_p + row, mask=real, other=0.0).to(tl.float32)
    most_k = tl.load(top_k + row, mask=real, other=0)
    share = tl.load(top_p + row, mask=real, other=1.0)

    limited = (most_k > 0) & (most_k < vocab)
    if tl.max(limited.to(tl.int32), 0) > 0:
        nothing = tl.full((ROWS,), 0.0, tl.float32)
        kth = _search(weights, row, real, vocab, nothing, most_k, True, ROWS, TILE)
        least = tl.where(limited, tl.maximum(least, kth), least)
    if tl.min(share, 0) < 1.0:
        target = share * _mass(weights, row, real, vocab, least, ROWS, TILE)
        nucleus = _search(weights, row, real, vocab, least, target, False, ROWS, TILE)
        least = tl.where(share < 1.0, nucleus, least)

    total = _mass(weights, row, real, vocab, least, ROWS, TILE)
    total = tl.where(real, total, 1.0)
    drawn = uniform(
        tl.load(key_low + row, mask=real, other=0),
        tl.load(key_high + row, mask=real, other=0),
        tl.load(index + row, mask=real, other=0),
    )
    target = drawn * total
    # Whatever the rounding, the last block exceeds.
    limit = tl.minimum(target, _below(total))
    block, before = tl.full((ROWS,), 0, tl.int32), tl.full((ROWS,), 0.0, tl.float64)
    running = before
    for start in range(0, vocab, TILE):
        sums = _sums(weights, row, real, start, vocab, least, running, ROWS, TILE)
        passed = (sums <= limit[:, None]) & (start + tl.arange(0, TILE // _BLOCK) * _BLOCK < vocab)
        block += tl.sum(passed.to(tl.int32), 1)
        before = tl.maximum(before, tl.max(tl.where(passed, sums, 0.0), 1))
        running = tl.max(sums, 1)

    i = block[:, None] * _BLOCK + tl.arange(0, _BLOCK)[None, :]
    at = weights + row[:, None] * vocab + i
    weight = tl.load(at, mask=real[:, None] & (i < vocab), other=0.0)
    weight = tl.where(weight >= least[:, None], weight, 0.0)
    inner = tl.cumsum(weight.to(tl.float64), 1)
    limit = tl.minimum(target - before, _below(tl.where(real, tl.max(inner, 1), 1.0)))
    place = tl.sum((inner <= limit[:, None]).to(tl.int32), 1)
    tl.store(tokens + row, block * _BLOCK + place, mask=real)


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
        rows: rows of one program; a GPU wants as many programs as it can get.
    """
    count, vocab = logits.shape
    tokens = torch.empty(count, dtype=torch.int32, device=logits.device)
    finite = torch.empty(count, dtype=torch.int8, device=logits.device)
    weights = torch.empty_like(logits)
    grid = (triton.cdiv(count, rows),)
    size: Any = {"ROWS": rows, "TILE": min(_WIDEST, max(128, power(vocab))), "num_warps": _WARPS}
    first: Any = _weigh[grid]
    first(logits.contiguous(), warmth, weights, tokens, finite, count, vocab, **size)
    second: Any = _choose[grid]
    second(
        *(weights, key_low, key_high, index, top_k, top_p, min_p, greedy, tokens),
        *(count, vocab),
        **size,
    )
    return tokens, finite
