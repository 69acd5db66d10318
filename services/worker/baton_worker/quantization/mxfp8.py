"""MXFP8 (OCP Microscaling Formats 1.0): 8-bit floats in blocks of 32 that share a power of two."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from baton.errors import ModelError
from baton_worker.kernels.fp8 import Fp8Weight, Inputs
from baton_worker.quantization.collect import Format, Formats, Parts

_BLOCK = 32
_EXPONENT_BIAS = 127


def formats(settings: SimpleNamespace) -> Formats:
    """The only format: codes E4M3, scales E8M0."""
    return lambda module: STORED


def _read(parts: Parts) -> Fp8Weight:
    """weight float8 [N, K], weight_scale uint8 [N, K / 32], exponents."""
    codes, exponents = parts["weight"], parts["weight_scale"].view(torch.uint8)
    if codes.dtype is not torch.float8_e4m3fn:
        raise ModelError(f"Weights of {codes.dtype} are no 8-bit floats that Baton reads.")
    scales = torch.ldexp(torch.ones(exponents.shape), exponents.int() - _EXPONENT_BIAS)
    return Fp8Weight(codes, scales, (1, _BLOCK), Inputs(_BLOCK))


STORED = Format(frozenset({"weight", "weight_scale"}), _read, frozenset({"input_scale"}))
