"""Reading and making codes of one byte (`kernels.pages.KVCodes`) inside of a kernel.

Codes are decoded by their bits, so that a GPU without such a number format reads them too.
"""

from __future__ import annotations

import triton
import triton.language as tl

INT8 = tl.constexpr(1)
FP8 = tl.constexpr(2)
"""`KVCodes.number`; 0 is plain numbers."""
_LEAST = tl.constexpr(1e-30)
"""Replaces smaller maxima, so that a scale has an inverse."""


@triton.jit
def number(code, CODES: tl.constexpr):
    """The float32 that a uint8 stands for, before its scale."""
    if CODES == INT8:
        return code.to(tl.int8, bitcast=True).to(tl.float32)
    # Shifted into place, an e4m3 number is a half-precision one of a 256th of its size.
    bits = code.to(tl.uint16)
    half = ((bits & 0x80) << 8) | ((bits & 0x7F) << 7)
    return half.to(tl.float16, bitcast=True).to(tl.float32) * 256.0


@triton.jit
def scale(at, mask, ALIGNED: tl.constexpr):
    """The float32 in four bytes, at a multiple of 4 if they are ALIGNED; 0 where it is not
    `mask`."""
    if ALIGNED:
        return tl.load(at.to(tl.pointer_type(tl.float32), bitcast=True), mask=mask, other=0.0)
    bits = tl.load(at, mask=mask, other=0).to(tl.uint32)
    for byte in tl.static_range(1, 4):
        bits |= tl.load(at + byte, mask=mask, other=0).to(tl.uint32) << (8 * byte)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def even(x):
    """To the nearest whole number, ties to even, for |x| below 2^22."""
    shifted = x + 12582912.0  # 1.5 * 2^23: no room is left for a fraction.
    return shifted - 12582912.0


@triton.jit
def code(x, CODES: tl.constexpr):
    """uint8 of float32 x, already divided by its scale and within the greatest code."""
    if CODES == INT8:
        return even(x).to(tl.int32).to(tl.int8).to(tl.uint8, bitcast=True)
    bits = x.to(tl.uint32, bitcast=True)
    size = bits & 0x7FFFFFFF
    odd = (size >> 20) & 1
    normal = ((size + odd + 0x7FFFF) >> 20) - (120 << 3)
    # Below 2^-6 codes count multiples of 2^-9.
    small = even(tl.abs(x) * 512.0).to(tl.uint32)
    chosen = tl.where(tl.abs(x) < 0.015625, small, normal)
    return (chosen | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def is_finite(x):
    """1 if every float32 of x is a number, and finite; else 0."""
    # A comparison with what is not a number fails.
    return tl.min((tl.abs(x) < float("inf")).to(tl.int32), 0)


@triton.jit
def least_scale(most, inverse_most):
    """The smallest scale that clips nothing, where `most` is the largest size in a row."""
    return tl.maximum(most, _LEAST) * inverse_most


@triton.jit
def store(to, x, mask, scale, most_code, CODES: tl.constexpr):
    """Write channels of a row, finite float32, as codes."""
    limited = tl.minimum(tl.maximum(x * tl.div_rn(1.0, scale), -most_code), most_code)
    tl.store(to, code(limited, CODES), mask=mask)


@triton.jit
def store_scale(to, is_finite, scale):
    """Write the four bytes of a row's scale; no number unless the row `is_finite`."""
    word = tl.where(is_finite, scale, float("nan")).to(tl.uint32, bitcast=True)
    for byte in tl.static_range(4):
        tl.store(to + byte, (word >> (8 * byte)).to(tl.uint8))
