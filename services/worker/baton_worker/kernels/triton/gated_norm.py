"""Gated norms of recurrent layers, one launch for all rows and parts."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_worker.kernels.triton import power


@triton.jit
def _gated_norm(
    x,
    gate,
    weight,
    out,
    gate_stride,
    size,
    eps,
    GROUPS: tl.constexpr,
    GATE_FIRST: tl.constexpr,
    SHARED: tl.constexpr,
    SILU: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """One part of one row, of `size` channels."""
    row, part, channel = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, WIDTH)
    inside, first = channel < size, part * size
    value = tl.load(x + (row * GROUPS + part) * size + channel, mask=inside, other=0.0)
    gate_value = tl.load(gate + row * gate_stride + first + channel, mask=inside, other=0.0).to(
        tl.float32
    )
    gate_factor = 1.0 / (1.0 + tl.exp(-gate_value))
    if SILU:
        gate_factor *= gate_value
    if GATE_FIRST:
        value *= gate_factor
    # Beyond the part the value is 0, so the gate does not matter.
    value *= tl.rsqrt(tl.sum(value * value, 0) / size + eps)
    part_weight = weight if SHARED else weight + first
    value *= tl.load(part_weight + channel, mask=inside, other=0.0).to(tl.float32)
    if not GATE_FIRST:
        value *= gate_factor
    target = out + (row * GROUPS + part) * size + channel
    tl.store(target, value.to(out.dtype.element_ty), mask=inside)


def gated_norm(
    x: Tensor,
    gate: Tensor,
    weight: Tensor,
    eps: float,
    *,
    groups: int,
    gate_first: bool,
    silu: bool,
) -> Tensor:
    """See `layers.ssm.gated_norm.GatedNorm`, the twin.

    Args:
        x: float32 [T, size].
        gate: [T, size], rows of any stride.
        weight: [size], or [size / groups] where it is one for all parts.
        groups: parts that are normed each by itself.
        gate_first: whether the gate is multiplied in before the norm.
        silu: the gate's activation; otherwise a sigmoid.

    Returns:
        [T, size] of the gate's dtype.
    """
    assert x.dtype is torch.float32 and gate.stride(1) == 1 and gate.shape == x.shape
    rows, size = len(x), x.shape[1] // groups
    out = torch.empty(x.shape, dtype=gate.dtype, device=gate.device)
    if not rows:
        return out
    width = power(size)
    launch: Any = _gated_norm[(rows, groups)]
    launch(
        *(x.contiguous(), gate, weight, out, gate.stride(0), size, eps),
        GROUPS=groups,
        GATE_FIRST=gate_first,
        SHARED=len(weight) == size and groups > 1,
        SILU=silu,
        WIDTH=width,
        num_warps=min(16, max(1, width // 256)),
    )
    return out
