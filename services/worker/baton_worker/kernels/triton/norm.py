"""Norms of rows, with the sum before them in the same pass."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_worker.kernels.triton import power


@triton.jit
def _norm(
    x,
    residual,
    weight,
    bias,
    out,
    total,
    row_stride,
    size,
    eps,
    SUMMED: tl.constexpr,
    CENTERED: tl.constexpr,
    SCALED: tl.constexpr,
    BIASED: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """One row: out = x / rms(x) * weight + bias, where x is first x + residual if SUMMED, and then
    x - mean(x) if CENTERED."""
    row = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, WIDTH)
    inside = channel < size
    value = tl.load(x + row * row_stride + channel, mask=inside, other=0.0).to(tl.float32)
    if SUMMED:
        value += tl.load(residual + row * size + channel, mask=inside, other=0.0).to(tl.float32)
        rounded = value.to(total.dtype.element_ty)
        tl.store(total + row * size + channel, rounded, mask=inside)
        # Later layers read the rounded sum, so that is normed.
        value = rounded.to(tl.float32)
    if CENTERED:
        value = tl.where(inside, value - tl.sum(value, 0) / size, 0.0)
    scale = tl.rsqrt(tl.sum(value * value, 0) / size + eps)
    value *= scale
    if SCALED:
        value *= tl.load(weight + channel, mask=inside, other=0.0).to(tl.float32)
    if BIASED:
        value += tl.load(bias + channel, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * size + channel, value.to(out.dtype.element_ty), mask=inside)


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """x [..., size] / rms(x) * weight [size] (Zhang and Sennrich 2019, arXiv:1910.07467); the twin
    is `F.rms_norm` in float32."""
    return norm(x, None, weight, None, eps)[0]


def norm(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    *,
    centered: bool = False,
) -> tuple[Tensor, Tensor]:
    """The norm of x + residual, and that sum, both [..., size].

    Args:
        x: [..., size], rows of any stride.
        residual: [..., size], contiguous; None for nothing to add: the second result is not the
            sum then.
        weight: [size], or None for ones.
        bias: [size], or None for zeros.
        centered: a layer norm (Ba et al. 2016, arXiv:1607.06450); its twin is `F.layer_norm`.
    """
    rows, size = x.reshape(-1, x.shape[-1]), x.shape[-1]
    assert rows.stride(1) == 1 and (residual is None or residual.is_contiguous())
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    total = out if residual is None else torch.empty_like(out)
    width = power(size)
    launch: Any = _norm[(max(1, len(rows)),)]
    if len(rows):
        launch(
            *(rows, residual, weight, bias, out, total, rows.stride(0), size, eps),
            SUMMED=residual is not None,
            CENTERED=centered,
            SCALED=weight is not None,
            BIASED=bias is not None,
            WIDTH=width,
            num_warps=min(16, max(1, width // 256)),
        )
    return out, total
