"""Attention of queries to the states of the parts of images."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def across(
    queries: Sequence[Tensor] | Tensor,
    key: Tensor,
    value: Tensor,
    counts: Sequence[int],
    num_heads: int,
) -> Tensor:
    """softmax(q k / sqrt(d)) v within each part.

    Args:
        queries: [any, width] for each part.
        key: [T, width], the keys of part after part; `counts` are their numbers.
        value: [T, width].

    Returns:
        [all queries, width], part after part.
    """

    def heads(x: Tensor) -> Tensor:
        """[N, width] to [heads, N, dim]."""
        return torch.unflatten(x, -1, (num_heads, -1)).transpose(0, 1)

    keys, values = (torch.split(x, list(counts)) for x in (key, value))
    attended = [
        F.scaled_dot_product_attention(heads(query), heads(key), heads(value))
        for query, key, value in zip(queries, keys, values, strict=True)
    ]
    return torch.cat(attended, dim=1).transpose(0, 1).flatten(1)
