"""Experts with random weights, and tokens routed to them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from baton_worker.kernels.moe.experts import Experts


def swiglu(inner: Tensor) -> Tensor:
    gate, up = inner.chunk(2, dim=-1)
    return F.silu(gate) * up


def experts(
    num: int,
    *,
    hidden: int = 10,
    size: int = 6,
    bias: bool = False,
    weigh_input: bool = False,
    dtype: torch.dtype = torch.float32,
    gated: bool = True,
    fused: str | None = None,
) -> Experts:
    generator = torch.Generator().manual_seed(num)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    rows = 2 * size if gated else size
    return Experts(
        random(num, rows, hidden),
        random(num, hidden, size),
        random(num, rows) if bias else None,
        random(num, hidden) if bias else None,
        swiglu if gated else F.relu,
        weigh_input,
        fused,
    )


def routed(num_tokens: int, num: int, slots: int, seed: int) -> tuple[Tensor, Tensor]:
    """Distinct experts per token, some slots empty, and weights."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.rand((num_tokens, num), generator=generator).argsort(-1)[:, :slots]
    weights = torch.rand((num_tokens, slots), generator=generator)
    return chosen, weights
