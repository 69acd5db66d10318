"""MXFP4 (OCP Microscaling Formats 1.0): 4-bit floats in blocks of 32 that share a power of two."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor

from baton_worker.kernels.nvfp4 import E2M1
from baton_worker.quantization.collect import Formats

_EXPONENT_BIAS = 127


def formats(settings: SimpleNamespace) -> Formats:
    """No module has a format: the spec lists the stacked expert tensors and their scales."""
    return lambda module: None


def dequantise(blocks: Tensor, scales: Tensor) -> Tensor:
    """uint8 blocks [..., n, 16] and uint8 scales [..., n] to float32 [..., n * 32].

    A byte holds two E2M1 values, the first in its low half; a scale is an E8M0 exponent. Every
    value is exact in bfloat16.
    """
    table = torch.tensor(E2M1, device=blocks.device)
    low, high = table[(blocks & 0x0F).int()], table[(blocks >> 4).int()]
    values = torch.stack((low, high), dim=-1).flatten(-2)
    return torch.ldexp(values, scales.int()[..., None] - _EXPONENT_BIAS).flatten(-2)
