"""Merge attention over disjoint parts of the KV into attention over all of it.

The log-sum-exp (LSE) of a part's scores restores its softmax denominator: each part weighs exp(lse
- total lse) (cascade inference, Ye et al. 2024; context parallelism, Liu et al. 2023,
arXiv:2310.01889).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Partial:
    """Result of `Backend.forward` for a `partial` call."""

    out: Tensor
    """[T, num_heads * width], any float dtype; zeros where nothing was seen."""
    lse: Tensor
    """float32 [T, num_heads]; -inf where nothing was seen."""


def merge(parts: Sequence[Partial], sinks: Tensor | None = None) -> Partial:
    """Merge the parts, in their order.

    Args:
        parts: at least one; their keys are disjoint.
        sinks: float, broadcast to [T, num_heads]: a score not yet in any part, of a key whose value
            is zero.

    Returns:
        In the dtype of the first part. Without visible keys the output is 0 and `lse` -inf; a NaN
        in one part gives NaN.
    """
    first = parts[0]
    sums = torch.stack([part.lse for part in parts])
    if sinks is not None:
        sums = torch.cat((sums, sinks.float().expand_as(first.lse)[None]))
    lse = sums.logsumexp(0)
    shares = (sums - lse.masked_fill(lse.isneginf(), 0.0)).exp()
    out = torch.zeros_like(first.out, dtype=torch.float32).view(*lse.shape, -1)
    for part, share in zip(parts, shares, strict=False):  # A sink adds to the denominator only.
        out += share[..., None] * part.out.float().view_as(out)
    return Partial(out.flatten(1).to(first.out.dtype), lse)
