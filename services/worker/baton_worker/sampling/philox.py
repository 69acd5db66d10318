"""Counter-based uniforms: the random number of token i of a sequence is a function of (seed, i).

Philox4x32-10 from Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC
2011). The seed is the key and the index the counter, so there is no generator state. The code uses
operators only, so it runs on int64 arrays of numpy and of torch.
"""

from __future__ import annotations

from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from torch import Tensor

Column: TypeAlias = npt.NDArray[np.int64]
A = TypeVar("A", Column, Tensor)

_LOW = 0xFFFFFFFF
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_WEYL = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10


def philox(counter: tuple[A, A, A, A], key: tuple[A, A]) -> tuple[A, A, A, A]:
    """Four 32-bit words, each in an int64, from four counter and two key words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        # The products wrap around in int64, which keeps the bits of the unsigned product.
        first, second = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1 = ((second >> 32) & _LOW) ^ c1 ^ k0, second & _LOW
        c2, c3 = ((first >> 32) & _LOW) ^ c3 ^ k1, first & _LOW
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return c0, c1, c2, c3


def bits(key_low: A, key_high: A, index: A) -> A:
    """Odd numbers of 53 bits, int64 [R], the numerators of `uniform` over 2^53."""
    zero = index ^ index
    first, second, _, _ = philox((index & _LOW, index >> 32, zero, zero), (key_low, key_high))
    return (first << 21) | (second >> 12 << 1) | 1


def uniform(key_low: Column, key_high: Column, index: Column) -> npt.NDArray[np.float64]:
    """Uniforms in the open interval (0, 1), float64 [R].

    Args:
        key_low: lower 32 bits of each seed, int64 [R].
        key_high: upper 32 bits of each seed, int64 [R].
        index: position of each token in its log, int64 [R].
    """
    # Odd and below 2^53: never 0, never 1, and exact in float64.
    return bits(key_low, key_high, index).astype(np.float64) * 2.0**-53
