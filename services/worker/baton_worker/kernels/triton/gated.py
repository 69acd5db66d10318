"""The gate of a gated feed-forward layer (Shazeer 2020, arXiv:2002.05202), in one pass."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_worker.kernels.cpu.linear import GATES
from baton_worker.kernels.triton import power

_WIDEST = 1024
_SILU = tl.constexpr(GATES["silu"])


@triton.jit
def activated(gate, up, GATE: tl.constexpr):
    """activation(gate) * up of float32."""
    # Both activations are the gate times a logistic function: tanh(x / 2) is 2 / (1 + e^-x) - 1.
    inner = gate
    if GATE != _SILU:
        inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    least = tl.exp(-tl.abs(inner))
    share = tl.where(inner >= 0.0, 1.0, least) / (1.0 + least)
    return gate * share * up


@triton.jit
def _gated(both, out, row_stride, size, GATE: tl.constexpr, WIDTH: tl.constexpr):
    """A piece of a row: out = activation(gate) * up in float32, gate being the first half."""
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = i < size
    gate = tl.load(both + row * row_stride + i, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(both + row * row_stride + size + i, mask=inside, other=0.0).to(tl.float32)
    made = activated(gate, up, GATE)
    tl.store(out + row * size + i, made.to(out.dtype.element_ty), mask=inside)


def gated(both: Tensor, gate: str) -> Tensor:
    """[..., 2 * size] to [..., size]: the activation of the first half times the second, rounded
    once; `gate` is its name in `kernels.cpu.linear.GATES`. The twin is torch's `silu`, or `gelu`
    with "tanh"."""
    rows, size = both.reshape(-1, both.shape[-1]), both.shape[-1] // 2
    out = torch.empty((*both.shape[:-1], size), dtype=both.dtype, device=both.device)
    width = min(_WIDEST, power(size))
    launch: Any = _gated[(max(1, len(rows)), triton.cdiv(size, width))]
    if len(rows):
        launch(rows, out, rows.stride(0), size, GATE=GATES[gate], WIDTH=width, num_warps=4)
    return out
