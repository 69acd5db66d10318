"""Random blocks of a GGUF type: weights of any type, without an importance matrix."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np

_Type = gguf.GGMLQuantizationType
_ONE = np.float16(1)
_EXPONENT = 120
"""Exponent byte of MXFP4: a scale of 2^-8."""
_FACTORS = {
    _Type.Q8_0: 0,
    _Type.Q4_0: 0,
    _Type.Q4_1: 0,
    _Type.Q5_0: 0,
    _Type.Q5_1: 0,
    _Type.Q2_K: 80,
    _Type.Q3_K: 108,
    _Type.Q4_K: 0,
    _Type.Q5_K: 0,
    _Type.Q6_K: 208,
    _Type.IQ1_S: 0,
    _Type.IQ2_XXS: 0,
    _Type.IQ2_XS: 0,
    _Type.IQ2_S: 0,
    _Type.IQ3_XXS: 0,
    _Type.IQ3_S: 0,
    _Type.IQ4_NL: 0,
    _Type.IQ4_XS: 0,
    _Type.TQ1_0: 52,
    _Type.TQ2_0: 64,
}
"""Offset of the half-precision scale in a block, of types that have one."""
_MINIMA = {
    _Type.Q4_1: -7.5,
    _Type.Q5_1: -15.5,
    _Type.Q2_K: 1.5,
    _Type.Q4_K: 7.5,
    _Type.Q5_K: 15.5,
}
"""Minimum as a multiple of the scale such that the mean is zero; it is stored after the scale."""
TYPES = {kind.name: kind for kind in (*_FACTORS, _Type.IQ1_M, _Type.MXFP4)}


def random_blocks(
    noise: np.random.Generator, size: tuple[int, int], kind: gguf.GGMLQuantizationType, scale: float
) -> Any:
    """uint8 [rows, bytes] of a weight [rows, columns] whose root mean square is near `scale`."""
    values, stored = gguf.GGML_QUANT_SIZES[kind]
    rows, columns = size
    if columns % values:
        raise ValueError(f"{columns} columns are no whole blocks of {values} in {kind.name}")
    blocks = noise.integers(0, 256, (rows * columns // values, stored), np.uint8)
    _set_factor(blocks, kind, _ONE)
    if kind is not _Type.MXFP4:
        size_of_one = np.sqrt(np.square(gguf.quants.dequantize(blocks[:256], kind)).mean())
        _set_factor(blocks, kind, np.float16(scale / size_of_one))
    return blocks.reshape(rows, -1)


def _set_factor(blocks: Any, kind: gguf.GGMLQuantizationType, factor: np.float16) -> None:
    if kind is _Type.MXFP4:
        blocks[:, 0] = _EXPONENT
        return
    if kind is _Type.IQ1_M:
        # Four bits of the factor above each 16 bits of steps.
        words = blocks[:, 48:].view(np.uint16)
        words &= np.uint16(0x0FFF)
        words |= factor.view(np.uint16) >> np.array([0, 4, 8, 12], np.uint16) << np.uint16(12)
        return
    first = _FACTORS[kind]
    blocks[:, first : first + 2] = np.array([factor]).view(np.uint8)
    if kind in _MINIMA:
        minimum = np.array([_MINIMA[kind] * factor], np.float16)
        blocks[:, first + 2 : first + 4] = minimum.view(np.uint8)
