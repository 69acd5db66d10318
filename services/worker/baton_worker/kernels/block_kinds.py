"""Kinds of blocks: how codes, scales and minima of a quantised weight are stored.

Groups run along the inner dimension. A weight is `scale * code + minimum`. In a "super" kind the
scale is a product: a half-precision factor per 256 values times a small integer per group. The
kinds are those of GGUF, so that its blocks need no conversion, and some for other schemes:

    int8           8.5 bits per weight   groups of 32, scale                       Q8_0
    int4           4.5                   groups of 32, scale                       Q4_0
    int4_minimum   5                     groups of 32, scale and minimum           Q4_1
    int4_offset    4.75                  groups of 32, scale * (code + offset)     AWQ, GPTQ
    int4_super     4.6                   groups of 32, scale and minimum, super    Q4_K
    int6_super     6.6                   groups of 16, scale, super                Q6_K
    int5           5.5                   groups of 32, scale                       Q5_0
    int5_minimum   6                     groups of 32, scale and minimum           Q5_1
    int5_super     5.6                   groups of 32, scale and minimum, super    Q5_K
    int3_super     3.6                   groups of 16, scale, super                Q3_K
    int2_super     3.1                   groups of 16, scale and minimum, super    Q2_K
    ternary        2.1                   groups of 256, scale                      TQ1_0, TQ2_0
    int8_float     9                     groups of 32, float scale                 LLM.int8

Codes of these are small floats, or indices into a table:

    mxfp4          4.25                  groups of 32, a power of two              MXFP4
    nvfp4          5                     groups of 16, 8-bit scale, super          NVFP4
    fp8            9                     groups of 32, float scale                 E4M3
    iq4            4.5                   groups of 32, scale                       IQ4_NL
    iq4_super      4.3                   groups of 32, scale, super                IQ4_XS
    iq3_xxs_super  4.3                   groups of 32, scale, super                IQ3_XXS
    iq3_s_super    4.3                   groups of 32, scale, super                IQ3_S
    iq2_super      4.6                   groups of 16, scale, super                IQ2_XXS, _XS, _S
    iq1_super      4.6                   groups of 16, scale, super                IQ1_S, IQ1_M
    nf4, fp4       4.5                   groups of 64, float scale                 bitsandbytes

GGUF stores eight or four values of an IQ3, IQ2 or IQ1 type as one index into a grid. Lookups in a
grid would bound a kernel, so each value is a 4-bit code here. Every value of a table is exact in
bfloat16 but for those of nf4, which bfloat16 products round, as bitsandbytes rounds its weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_SIZES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1 = (*_SIZES, *(-size for size in _SIZES))
"""The 4-bit floats that nibbles stand for."""
_NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
"""Quantiles of a normal distribution (Dettmers et al. 2023, arXiv:2305.14314)."""
_FP4 = (0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0)
_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_ODD = tuple(range(1, 16, 2))


def _signed(sizes: tuple[float, ...]) -> tuple[float, ...]:
    """The sizes, then their negatives eight codes later; other codes are 0."""
    half = (*sizes, *[0.0] * (8 - len(sizes)))
    return (*half, *(-size for size in half))


TABLES: dict[str, tuple[float, ...]] = {
    "e2m1": E2M1,
    "iq4": _IQ4,
    "iq3_xxs": _signed((*_ODD[:-1], 15.5)),
    "iq3_s": _signed(_ODD),
    "iq2": _signed((1.0, 3.125, 5.375)),
    "iq1": (-1.125, -0.875, -0.125, 0.125, 0.875, 1.125, *[0.0] * 10),
    "nf4": _NF4,
    "fp4": _signed(_FP4),
}
"""Values of 4-bit codes; `kernels/cpu/narrow_codes.h` has the same. Tables of IQ3 and IQ2 are the
numbers of their grids divided so that scales are whole multiples of a factor."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Storage of codes, scales and minima."""

    group: int
    lowest: int
    highest: int
    has_minimum: bool = False
    super_group: int = 0
    """Values that share the factors of a super kind."""
    has_offset: bool = False
    values: str = "integer"
    """Type of the codes: "integer", "e4m3" floats by their bits, or indices into one of
    `TABLES`."""

    @property
    def bits(self) -> int:
        """Bits of a packed code."""
        needed = (self.highest - self.lowest).bit_length()
        return needed if needed <= 6 else 8

    @property
    def multiple(self) -> int:
        """The inner dimension must be a multiple of this."""
        return self.super_group or self.group

    def numbers(self, codes: Tensor) -> Tensor:
        """float32 values of int8 codes."""
        if self.values in TABLES:
            table = torch.tensor(TABLES[self.values], dtype=torch.float32, device=codes.device)
            return table[codes.int()]
        if self.values == "e4m3":
            codes = codes.view(torch.float8_e4m3fn)
        return codes.to(torch.float32)


KINDS = {
    "int8": Kind(32, -128, 127),
    "int4": Kind(32, -8, 7),
    "int4_minimum": Kind(32, 0, 15, has_minimum=True),
    "int4_offset": Kind(32, 0, 15, has_offset=True),
    "int4_super": Kind(32, 0, 15, has_minimum=True, super_group=256),
    "int6_super": Kind(16, -32, 31, super_group=256),
    "mxfp4": Kind(32, 0, 15, values="e2m1"),
    "nvfp4": Kind(16, 0, 15, super_group=64, values="e2m1"),
    "fp8": Kind(32, -128, 127, values="e4m3"),
    "int5": Kind(32, -16, 15),
    "int5_minimum": Kind(32, 0, 31, has_minimum=True),
    "int5_super": Kind(32, 0, 31, has_minimum=True, super_group=256),
    "int3_super": Kind(16, -4, 3, super_group=256),
    "int2_super": Kind(16, 0, 3, has_minimum=True, super_group=256),
    "ternary": Kind(256, -1, 2),
    "iq4": Kind(32, 0, 15, values="iq4"),
    "iq4_super": Kind(32, 0, 15, super_group=256, values="iq4"),
    "iq3_xxs_super": Kind(32, 0, 15, super_group=256, values="iq3_xxs"),
    "iq3_s_super": Kind(32, 0, 15, super_group=256, values="iq3_s"),
    "iq2_super": Kind(16, 0, 15, super_group=256, values="iq2"),
    "iq1_super": Kind(16, 0, 15, super_group=256, values="iq1"),
    "nf4": Kind(64, 0, 15, values="nf4"),
    "fp4": Kind(64, 0, 15, values="fp4"),
    "int8_float": Kind(32, -128, 127),
}
FLOAT_SCALES = frozenset({"fp8", "nvfp4", "nf4", "fp4", "int8_float"})
"""Kinds whose scales are float32; those of mxfp4 are exponents, all others half-precision."""
