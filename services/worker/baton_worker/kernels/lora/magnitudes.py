"""Weight-decomposed adapters (DoRA, arXiv:2402.09353).

    y = m / |W + s B A| * (W x + s B A x)

The norm is that of each row, so the fraction is one factor for each output: the kernel of W
multiplies its sums by it, and the columns of B have it in them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from baton_worker.kernels.linear import LinearWeight
from baton_worker.kernels.lora import LoraPair

_AT_ONCE = 1 << 20
"""Numbers of a weight that are in float32 at a time."""
_LEAST = torch.finfo(torch.float32).tiny


def row_squares(weights: Sequence[LinearWeight], device: torch.device) -> Tensor:
    """|W|^2 of each row of all weights, as their kernels multiply: float32 [N] on `device`."""
    return torch.cat([_squares(weight) for weight in weights]).to(device)


def _squares(weight: LinearWeight) -> Tensor:
    rows, columns = weight.shape
    step = max(1, _AT_ONCE // columns)
    parts = (weight[first : first + step] for first in range(0, rows, step))
    floats = (part if isinstance(part, Tensor) else part.dequantise() for part in parts)
    return torch.cat([part.detach().float().square().sum(-1) for part in floats])


def output_factors(
    pairs: Sequence[LoraPair | None],
    sizes: Sequence[int],
    squares: Tensor,
    product: Callable[[Tensor], Tensor],
    total: Callable[[Tensor], Tensor] | None = None,
) -> Tensor | None:
    """m / |W + s B A| of each row of a layer's parts, 1 for parts without magnitudes.

    Args:
        pairs: what an adapter has for each part.
        sizes: rows of each part.
        squares: see `row_squares`.
        product: [T, in_features] to x W^T, float32 [T, N].
        total: the sum over all ranks of float32 [n], where each has some columns of the layer.

    Returns:
        float32 [N]; None if no part has magnitudes.
    """
    if all(pair is None or pair.magnitude is None for pair in pairs):
        return None
    factors, first = torch.ones_like(squares), 0
    for pair, size in zip(pairs, sizes, strict=True):
        rows = slice(first, first + size)
        if pair is not None and pair.magnitude is not None:
            squares_sum = _squared(pair, squares[rows], product(pair.a)[:, rows])
            squares_sum = squares_sum if total is None else total(squares_sum)
            factors[rows] = pair.magnitude / squares_sum.clamp(min=_LEAST).sqrt()
        first += size
    return factors


def _squared(pair: LoraPair, squares: Tensor, products: Tensor) -> Tensor:
    """|W + s B A|^2 from |W|^2 and A W^T [rank, n], without the sum of both weights."""
    a, b, scale = pair.a.float(), pair.b.float(), pair.scale
    crossed = (b * products).sum(0)
    added = ((a @ a.T) @ b).mul_(b).sum(0)
    return squares + 2 * scale * crossed + scale**2 * added


def with_factors(
    pairs: Sequence[LoraPair | None], sizes: Sequence[int], factors: Tensor
) -> list[LoraPair | None]:
    """The pairs with the factors of their rows in B."""
    each = torch.split(factors, list(sizes))
    return [
        None if pair is None else pair._replace(b=(pair.b.float() * own).to(pair.b.dtype))
        for pair, own in zip(pairs, each, strict=True)
    ]
