"""Top-k of a long row for a small k."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

_GROUP = 32
"""Numbers per group; a group takes every (V / 32)-th number, so that maxima vectorise."""


def largest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """`torch.topk` along the last axis, several times as fast on a vocabulary.

    The k largest numbers lie in the k groups with the largest maxima, so only those are searched.

    Args:
        values: [R, V], no NaN.
        count: k, at most V.

    Returns:
        Values in descending order and their indices, [R, k] each. Ties are broken arbitrarily.
    """
    rows, width = values.shape
    if count == 0 or width < 2 * _GROUP * count:
        top = values.topk(count, dim=1)
        return top.values, top.indices
    padding = -width % _GROUP
    padded = F.pad(values, (0, padding), value=float("-inf")) if padding else values
    groups = padded.view(rows, _GROUP, -1)
    best = groups.amax(1).topk(count, dim=1, sorted=False).indices
    candidates = groups.gather(2, best[:, None, :].expand(-1, _GROUP, -1)).flatten(1)
    top = candidates.topk(count, dim=1)
    lane, group = top.indices // count, top.indices % count
    return top.values, lane * groups.shape[2] + best.gather(1, group)
