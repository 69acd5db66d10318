"""Kernels around the functions that kernels share. Import it where Triton is interpreted."""

from __future__ import annotations

import triton
import triton.language as tl

from baton_worker.kernels.triton import kv_codes, sampling
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
