"""GGUF block formats, decoded losslessly into codes and scales.

Layouts are those of llama.cpp's `ggml-common.h`; byte offsets are within one block.
"""

from __future__ import annotations

from collections.abc import Callable

import gguf
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from baton_worker.checkpoint.gguf.grid_blocks import GRID_TYPES
from baton_worker.kernels.quantized_weights import BlockQuantized

_Type = gguf.GGMLQuantizationType
_UNSIGNED = 0x7F
"""Bits of an 8-bit float without its sign; all of them set are no number."""


def open_blocks(kind: int, rows: npt.NDArray[np.uint8]) -> BlockQuantized:
    """The rows [N, bytes] of a stored tensor of a type in `BLOCK_TYPES`, as blocks."""
    size = gguf.GGML_QUANT_SIZES[_Type(kind)][1]
    return BLOCK_TYPES[kind](torch.from_numpy(rows.reshape(len(rows), -1, size)))


def _halves(block: Tensor, first: int) -> Tensor:
    """The half-precision number at a byte of every block: [N, blocks]."""
    return block[..., first : first + 2].contiguous().view(torch.float16)[..., 0]


def _nibbles(packed: Tensor) -> Tensor:
    """uint8 [..., n] to int8 [..., 2 * n]: all low nibbles, then all high ones."""
    return torch.cat([packed & 15, packed >> 4], -1).view(torch.int8)


def _q8_0(block: Tensor) -> BlockQuantized:
    """Scale 0, codes 2 to 33."""
    codes = block[..., 2:].contiguous().view(torch.int8)
    return BlockQuantized("int8", codes.flatten(1), _halves(block, 0))


def _q4_0(block: Tensor) -> BlockQuantized:
    """Scale 0, codes 2 to 17; a nibble n is n - 8."""
    return BlockQuantized("int4", (_nibbles(block[..., 2:]) - 8).flatten(1), _halves(block, 0))


def _q4_1(block: Tensor) -> BlockQuantized:
    """Scale 0, minimum 2, codes 4 to 19."""
    codes = _nibbles(block[..., 4:]).flatten(1)
    return BlockQuantized("int4_minimum", codes, _halves(block, 0), _halves(block, 2))


def _high_bits(bits: Tensor) -> Tensor:
    """uint8 [..., n] to uint8 [..., 8 * n]: the bits of every byte, the lowest first."""
    return (bits[..., None] >> torch.arange(8, dtype=torch.uint8) & 1).flatten(-2)


def _q5_0(block: Tensor) -> BlockQuantized:
    """Scale 0, highest bits 2 to 5, nibbles 6 to 21; a code n is n - 16."""
    codes = _nibbles(block[..., 6:]).view(torch.uint8) | _high_bits(block[..., 2:6]) << 4
    return BlockQuantized("int5", (codes.view(torch.int8) - 16).flatten(1), _halves(block, 0))


def _q5_1(block: Tensor) -> BlockQuantized:
    """Scale 0, minimum 2, highest bits 4 to 7, nibbles 8 to 23."""
    codes = _nibbles(block[..., 8:]).view(torch.uint8) | _high_bits(block[..., 4:8]) << 4
    scales, minima = _halves(block, 0), _halves(block, 2)
    return BlockQuantized("int5_minimum", codes.view(torch.int8).flatten(1), scales, minima)


def _k_steps(steps: Tensor) -> tuple[Tensor, Tensor]:
    """Six-bit steps of scales and of minima in twelve bytes: int8 [N, 8 * blocks] each."""
    low, middle, high = steps[..., :4], steps[..., 4:8], steps[..., 8:]
    # The first four of each are stored whole; the others have their upper two bits beside those.
    scales = torch.cat([low & 63, (high & 15) | (low >> 6) << 4], -1)
    minima = torch.cat([middle & 63, (high >> 4) | (middle >> 6) << 4], -1)
    return scales.view(torch.int8).flatten(1), minima.view(torch.int8).flatten(1)


def _q4_k(block: Tensor) -> BlockQuantized:
    """Factors 0 and 2, six-bit steps of scales and minima 4 to 15, codes 16 to 143."""
    codes = _nibbles(block[..., 16:].reshape(*block.shape[:2], 4, 32)).flatten(1)
    # GGUF subtracts minima, Baton adds them.
    factors = _halves(block, 0), -_halves(block, 2)
    return BlockQuantized("int4_super", codes, *factors, *_k_steps(block[..., 4:16]))


def _q5_k(block: Tensor) -> BlockQuantized:
    """As `_q4_k`, with highest bits 16 to 47 before the nibbles 48 to 175."""
    low = _nibbles(block[..., 48:].reshape(*block.shape[:2], 4, 32)).flatten(1).view(torch.uint8)
    codes = (low | _planes(block[..., 16:48], 1).flatten(1) << 4).view(torch.int8)
    factors = _halves(block, 0), -_halves(block, 2)
    return BlockQuantized("int5_super", codes, *factors, *_k_steps(block[..., 4:16]))


def _planes(packed: Tensor, bits: int) -> Tensor:
    """uint8 [..., n] to uint8 [..., n / 32 * 8 / bits, 32]: bytes hold codes that are 32 apart."""
    packed = packed.reshape(*packed.shape[:-1], -1, 1, 32)
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8)[:, None]
    return (packed >> shifts & (1 << bits) - 1).flatten(-3, -2)


def _q2_k(block: Tensor) -> BlockQuantized:
    """Steps of scales and minima 0 to 15, codes 16 to 79, factors 80 and 82."""
    steps = block[..., :16]
    return BlockQuantized(
        "int2_super",
        _planes(block[..., 16:80], 2).flatten(1).view(torch.int8),
        _halves(block, 80),
        -_halves(block, 82),
        (steps & 15).view(torch.int8).flatten(1),
        (steps >> 4).view(torch.int8).flatten(1),
    )


def _q3_k(block: Tensor) -> BlockQuantized:
    """Highest bits 0 to 31, lower two 32 to 95, six-bit steps 96 to 107, factor 108."""
    highest = _planes(block[..., :32], 1)
    codes = (_planes(block[..., 32:96], 2) | highest << 2).flatten(1).view(torch.int8) - 4
    low, high = block[..., 96:104], block[..., 104:108]
    lower = torch.cat([low & 15, low >> 4], -1)
    upper = torch.cat([high >> shift & 3 for shift in (0, 2, 4, 6)], -1)
    steps = (lower | upper << 4).view(torch.int8) - 32
    return BlockQuantized("int3_super", codes, _halves(block, 108), scale_steps=steps.flatten(1))


def _q6_k(block: Tensor) -> BlockQuantized:
    """Low four bits 0 to 127, upper two 128 to 191, steps of scales 192 to 207, factor 208."""
    low = block[..., :128].reshape(*block.shape[:2], 2, 64)
    high = block[..., 128:192].reshape(*block.shape[:2], 2, 32)
    upper = torch.cat([high >> shift & 3 for shift in (0, 2, 4, 6)], -1)
    codes = (torch.cat([low & 15, low >> 4], -1) | upper << 4).view(torch.int8) - 32
    steps = block[..., 192:208].contiguous().view(torch.int8)
    return BlockQuantized(
        "int6_super", codes.flatten(1), _halves(block, 208), scale_steps=steps.flatten(1)
    )


def _mxfp4(block: Tensor) -> BlockQuantized:
    """Exponent 0, codes 1 to 16."""
    exponents = block[..., 0].contiguous()
    return BlockQuantized("mxfp4", _nibbles(block[..., 1:]).flatten(1), exponents)


def _nvfp4(block: Tensor) -> BlockQuantized:
    """Scales of four groups 0 to 3, 8-bit floats without a sign of which the greatest code is 0;
    codes 4 to 35, group by group."""
    steps = block[..., :4] & _UNSIGNED
    steps = torch.where(steps == _UNSIGNED, 0, steps).flatten(1)
    codes = _nibbles(block[..., 4:].reshape(*block.shape[:2], 4, 8)).flatten(1)
    factors = torch.ones(block.shape[:2], dtype=torch.float32)
    return BlockQuantized("nvfp4", codes, factors, scale_steps=steps.view(torch.int8))


def _iq4_nl(block: Tensor) -> BlockQuantized:
    """Scale 0, codes 2 to 17."""
    return BlockQuantized("iq4", _nibbles(block[..., 2:]).flatten(1), _halves(block, 0))


def _iq4_xs(block: Tensor) -> BlockQuantized:
    """Factor 0, upper two bits of steps 2 and 3, lower four 4 to 7, codes 8 to 135."""
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8)
    upper = (block[..., 2:4, None] >> shifts & 3).flatten(-2)
    lower = torch.stack([block[..., 4:8] & 15, block[..., 4:8] >> 4], -1).flatten(-2)
    steps = (lower | upper << 4).view(torch.int8) - 32
    codes = _nibbles(block[..., 8:].reshape(*block.shape[:2], 8, 16)).flatten(1)
    return BlockQuantized("iq4_super", codes, _halves(block, 0), scale_steps=steps.flatten(1))


BLOCK_TYPES: dict[int, Callable[[Tensor], BlockQuantized]] = {
    **{kind: form.read for kind, form in GRID_TYPES.items()},
    _Type.Q5_0: _q5_0,
    _Type.Q5_1: _q5_1,
    _Type.Q2_K: _q2_k,
    _Type.Q3_K: _q3_k,
    _Type.Q5_K: _q5_k,
    _Type.IQ4_NL: _iq4_nl,
    _Type.IQ4_XS: _iq4_xs,
    _Type.Q8_0: _q8_0,
    _Type.Q4_0: _q4_0,
    _Type.Q4_1: _q4_1,
    _Type.Q4_K: _q4_k,
    _Type.Q6_K: _q6_k,
    _Type.MXFP4: _mxfp4,
    _Type.NVFP4: _nvfp4,
}
"""Decoders by GGUF type; other types are dequantised."""
