"""Kernels around the functions that kernels share. Import it where Triton is interpreted."""

from __future__ import annotations

import triton
import triton.language as tl

from baton_worker.kernels.triton import kv_codes, radix_select, sampling
from baton_worker.kernels.triton.attention import bounds


@triton.jit  # type: ignore[untyped-decorator]
def rows(starts, out, num_rows, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The row of each query block."""
    block = tl.program_id(0)
    tl.store(out + block, bounds.row_of(block, starts, num_rows, TILE))


@triton.jit  # type: ignore[untyped-decorator]
def decode(given, out, CODES: tl.constexpr):  # type: ignore[no-untyped-def]
    """256 codes to numbers."""
    i = tl.arange(0, 256)
    tl.store(out + i, kv_codes.number(tl.load(given + i), CODES))


@triton.jit  # type: ignore[untyped-decorator]
def encode(given, out, CODES: tl.constexpr):  # type: ignore[no-untyped-def]
    """Numbers to codes, 256 in a program."""
    i = tl.program_id(0) * 256 + tl.arange(0, 256)
    tl.store(out + i, kv_codes.code(tl.load(given + i), CODES))


@triton.jit  # type: ignore[untyped-decorator]
def uniform(low, high, index, out, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Random numbers of keys and positions."""
    i = tl.arange(0, SIZE)
    tl.store(out + i, sampling.uniform(tl.load(low + i), tl.load(high + i), tl.load(index + i)))


@triton.jit  # type: ignore[untyped-decorator]
def first_digits(  # type: ignore[no-untyped-def]
    weights, histogram, num_rows, vocab, shift, counted, ROWS: tl.constexpr, TILE: tl.constexpr
):
    """What rows of weights amount to, by their first digit."""
    row = tl.arange(0, ROWS).to(tl.int64)
    i = tl.program_id(0) * TILE + tl.arange(0, TILE)
    seen = (row < num_rows)[:, None] & (i < vocab)[None, :]
    weight = tl.load(weights + row[:, None] * vocab + i[None, :], mask=seen, other=0.0)
    nothing = tl.full((ROWS,), 0, tl.int32)
    radix_select.add(histogram, row, weight, row < num_rows, nothing, shift, counted)


@triton.jit  # type: ignore[untyped-decorator]
def selected(histogram, prefix, wanted, out, num_rows, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The weights that a select has found."""
    row = tl.arange(0, ROWS).to(tl.int64)
    real = row < num_rows
    found = radix_select.threshold(histogram, prefix, wanted, row, real)
    tl.store(out + row, found, mask=real)
