"""Top-k, top-p and min-p truncation.

All three keep the most probable tokens, so together they are one threshold per row. Tokens exactly
as probable as the last one kept are kept too, so the result does not depend on sort order. The
order is min-p, top-k, top-p, after locally typical sampling; each works on the output of the
previous one.

Top-p is nucleus sampling (Holtzman et al. 2019, arXiv:1904.09751), min-p is Nguyen et al. 2024
(arXiv:2407.01082).
"""

from __future__ import annotations

import torch
from torch import Tensor

from baton_worker.sampling.top_k import largest
from baton_worker.sampling.vocab_blocks import mass

_FIRST_WIDTH = 128
"""Number of most probable tokens examined first; a nucleus is seldom wider."""


def threshold(probabilities: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Minimum kept probability per row, float32 [R].

    Args:
        probabilities: float32 [R, V].
        top_k: int64 [R], 0 or V and above means off.
        top_p: float64 [R] in (0, 1], 1 means off.
        min_p: float64 [R] in [0, 1], 0 means off: minimum probability relative to the maximum.
    """
    vocab = probabilities.shape[1]
    limited = (top_k > 0) & (top_k < vocab)
    top_k = torch.where(limited, top_k, 1)
    # A top-k above the first width sets the number of tokens to examine.
    width = min(vocab, max(_FIRST_WIDTH, int(top_k.amax())))
    values, _ = largest(probabilities, width)
    least = (min_p * values[:, 0]).to(values.dtype)
    kth = values.gather(1, top_k[:, None] - 1)[:, 0]
    least = torch.where(limited, torch.maximum(least, kth), least)
    rows = (top_p < 1).nonzero()[:, 0]
    if len(rows):
        part = _rows(probabilities, rows)
        remaining = part.clone()
        drop(remaining, least[rows])
        least[rows] = _nucleus(remaining, values[rows], least[rows], top_p[rows] * mass(remaining))
    return least


def drop(probabilities: Tensor, least: Tensor) -> None:
    """Zero all values below `least` [R], in place in [R, V]."""
    # Several times as fast as `torch.where`: this comparison is vectorised.
    probabilities.mul_(probabilities.clone().ge_(least[:, None]))


def _nucleus(remaining: Tensor, values: Tensor, least: Tensor, target: Tensor) -> Tensor:
    """Raise `least` [S] to keep the fewest tokens whose mass reaches `target` [S].

    `values` are the largest probabilities of each row in descending order.
    """
    width, vocab = values.shape[1], remaining.shape[1]
    sums = torch.where(values >= least[:, None], values, 0.0).cumsum(1, dtype=torch.float64)
    size = (sums < target[:, None]).sum(1)
    last = values.gather(1, size.clamp(max=width - 1)[:, None])[:, 0]
    result = torch.maximum(least, last)
    wide = (size >= width).nonzero()[:, 0]
    if width < vocab and len(wide):
        result[wide] = torch.maximum(least[wide], _bisect(_rows(remaining, wide), target[wide]))
    return result


def _bisect(weights: Tensor, target: Tensor) -> Tensor:
    """The largest float32 threshold with a mass of at least `target` [R] at or above it.

    Non-negative floats are ordered like their bits, so bisection takes at most 31 passes: for a
    wide nucleus far fewer operations than a sort.
    """
    low = torch.zeros(len(weights), dtype=torch.int32, device=weights.device)
    high = weights.amax(1).view(torch.int32) + 1
    scratch = torch.empty_like(weights)
    while bool((high - low > 1).any()):
        middle = low + (high - low) // 2
        scratch.copy_(weights).ge_(middle.view(torch.float32)[:, None]).mul_(weights)
        enough = mass(scratch) >= target
        low, high = torch.where(enough, middle, low), torch.where(enough, high, middle)
    return low.view(torch.float32)


def _rows(values: Tensor, rows: Tensor) -> Tensor:
    return values if len(rows) == len(values) else values.index_select(0, rows)
