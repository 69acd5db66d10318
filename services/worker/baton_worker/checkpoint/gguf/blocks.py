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

from baton_worker.kernels.quantized_weights import BlockQuantized

_Type = gguf.GGMLQuantizationType


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


def _q4_k(block: Tensor) -> BlockQuantized:
    """Factors 0 and 2, six-bit steps of scales and minima 4 to 15, codes 16 to 143."""
    steps = block[..., 4:16]
    low, middle, high = steps[..., :4], steps[..., 4:8], steps[..., 8:]
    # The first four of each are stored whole; the others have their upper two bits beside those.
    scales = torch.cat([low & 63, (high & 15) | (low >> 6) << 4], -1)
    minima = torch.cat([middle & 63, (high >> 4) | (middle >> 6) << 4], -1)
    codes = _nibbles(block[..., 16:].reshape(*block.shape[:2], 4, 32)).flatten(1)
    return BlockQuantized(
        "int4_super",
        codes,
        _halves(block, 0),
        -_halves(block, 2),  # GGUF subtracts minima, Baton adds them
        scales.view(torch.int8).flatten(1),
        minima.view(torch.int8).flatten(1),
    )


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


BLOCK_TYPES: dict[int, Callable[[Tensor], BlockQuantized]] = {
    _Type.Q8_0: _q8_0,
    _Type.Q4_0: _q4_0,
    _Type.Q4_1: _q4_1,
    _Type.Q4_K: _q4_k,
    _Type.Q6_K: _q6_k,
    _Type.MXFP4: _mxfp4,
}
"""Decoders by GGUF type; other types are dequantised."""
