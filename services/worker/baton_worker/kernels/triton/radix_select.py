"""The least weight that top-k and top-p keep: a radix select whose programs share a row.

Weights are float32 from 0 to 1, so their order is that of 30 bits: three digits of ten bits, the
most significant first. For each digit, the programs of a row add up what their weights amount to
in 1,024 bins of one histogram, and the bin in which the wanted amount is reached, from the greatest
on, is the digit (Alabi et al. 2012, doi:10.1145/2133803.2345676). Amounts are 1 for top-k, and the
weight in units of 2^-44 for top-p: sums of integers are the same in any order, so that a row's
token does not depend on which program comes first.

State of a select, per row: `prefix` int32, the digits so far, and `wanted` int64, what is wanted of
the weights that have them; 0 for a row that selects nothing. A launch reads one entry of each and
writes the next, since its programs read what one of them writes.
"""

from __future__ import annotations

import triton
import triton.language as tl

DIGITS = 3
BINS = 1024
_BINS = tl.constexpr(BINS)
_DIGIT = tl.constexpr(10)
FIRST = (DIGITS - 1) * 10
"""Bits behind the first digit."""
_UNIT = tl.constexpr(float(1 << 44))
"""Room for 2^19 weights of 1 in 63 bits; what is less than one unit amounts to nothing."""


@triton.jit
def amount(weight):
    """Weights, or sums of them, float64, as int64; rounded up, so that a sum reaches its own."""
    scaled = weight * _UNIT
    floor = scaled.to(tl.int64)
    return floor + (floor.to(tl.float64) < scaled).to(tl.int64)


@triton.jit
def add(histogram, row, weight, is_row, prefix, shift, counted):
    """Add a tile [ROWS, TILE] of weights to histograms [R, BINS], by the digit that has `shift`
    bits behind it, of weights whose digits before it are `prefix` [ROWS]."""
    bits = weight.to(tl.int32, bitcast=True)
    # Weights of 0 are frequent, and do not change a sum.
    fits = is_row[:, None] & (weight > 0.0) & ((bits >> (shift + _DIGIT)) == prefix[:, None])
    mass = (weight.to(tl.float64) * _UNIT).to(tl.int64)
    increment = tl.where(counted != 0, 1, mass)
    target = histogram + row[:, None] * _BINS + ((bits >> shift) & (_BINS - 1))
    tl.atomic_add(target, increment, mask=fits, sem="relaxed")


@triton.jit
def digit(histogram, row, is_row, wanted):
    """The greatest bin from which on histograms [R, BINS] add up to what is `wanted`, the least one
    if none is; and what is wanted of that bin. int32 and int64 [ROWS]."""
    bin_number = tl.arange(0, _BINS)
    source = histogram + row[:, None] * _BINS + bin_number[None, :]
    amounts = tl.load(source, mask=is_row[:, None], other=0)
    from_here = tl.sum(amounts, 1)[:, None] - tl.cumsum(amounts, 1) + amounts
    num_reaching = tl.sum((from_here >= wanted[:, None]).to(tl.int32), 1)
    chosen = tl.maximum(num_reaching - 1, 0)
    above = tl.sum(tl.where(bin_number[None, :] > chosen[:, None], amounts, 0), 1)
    return chosen, wanted - above


@triton.jit(do_not_specialize=["num_rows", "shift", "counted"])
def narrow(
    weights,
    histogram,
    prefix,
    wanted,
    next_histogram,
    next_prefix,
    next_wanted,
    num_rows,
    vocab,
    shift,
    counted,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Read one digit of each row, and add a tile of its weights to the histogram of the next, which
    has `shift` bits behind it."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    amounts = tl.load(wanted + row, mask=row < num_rows, other=0)
    is_row = amounts > 0
    if tl.max(is_row.to(tl.int32), 0) == 0:
        return
    chosen, remaining = digit(histogram, row, is_row, amounts)
    digits = (tl.load(prefix + row, mask=is_row, other=0) << _DIGIT) | chosen
    if tl.program_id(1) == 0:
        tl.store(next_prefix + row, digits, mask=is_row)
        tl.store(next_wanted + row, remaining, mask=is_row)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    mask = is_row[:, None] & (column < vocab)[None, :]
    weight = tl.load(weights + row[:, None] * vocab + column[None, :], mask=mask, other=0.0)
    add(next_histogram, row, weight, is_row, digits, shift, counted)


@triton.jit
def threshold(histogram, prefix, wanted, row, is_row):
    """The selected weights, float32 [ROWS], from the last histograms; 0 for rows that select
    nothing."""
    amounts = tl.load(wanted + row, mask=is_row, other=0)
    chosen, _ = digit(histogram, row, is_row & (amounts > 0), amounts)
    bits = (tl.load(prefix + row, mask=is_row & (amounts > 0), other=0) << _DIGIT) | chosen
    return tl.where(amounts > 0, bits, 0).to(tl.float32, bitcast=True)
