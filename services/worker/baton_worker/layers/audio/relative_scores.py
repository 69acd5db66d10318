"""Attention over all frames of a clip with scores that depend on distances."""

from __future__ import annotations

import torch
from torch import Tensor


def distances(count: int, device: torch.device) -> Tensor:
    """int64 [count, count]: place of each query minus that of each key."""
    places = torch.arange(count, device=device)
    return places[:, None] - places


def heads_of(x: Tensor, num_heads: int) -> Tensor:
    """[..., frames, channels] to [..., heads, frames, channels / heads]."""
    return torch.unflatten(x, -1, (num_heads, -1)).transpose(-2, -3)


def joined(x: Tensor) -> Tensor:
    """The inverse of `heads_of`."""
    return x.transpose(-2, -3).flatten(-2)


def by_distance(query: Tensor, vectors: Tensor, rows: Tensor) -> Tensor:
    """Products of queries with a vector for each distance.

    Args:
        query: [..., heads, frames, dim].
        vectors: [number, dim], or [heads, number, dim].
        rows: int64 [frames, frames], the vector of each pair of query and key.

    Returns:
        [..., heads, frames, frames].
    """
    every = query @ vectors.transpose(-1, -2)
    return every.gather(-1, rows.expand(*every.shape[:-1], rows.shape[-1]))
