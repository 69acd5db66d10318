"""Two-level sums over a vocabulary: fast and independent of the rest of the batch.

A running float64 sum over a whole vocabulary costs more than the softmax. A plain torch sum may
split a lone row among threads and round it differently.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

BLOCK = 128
"""Tokens per block."""


def blocks(weights: Tensor) -> Tensor:
    """View (or zero-padded copy) of [R, V] as [R, B, BLOCK]."""
    padding = -weights.shape[1] % BLOCK
    padded = F.pad(weights, (0, padding)) if padding else weights
    return padded.view(len(weights), -1, BLOCK)


def mass(weights: Tensor) -> Tensor:
    """Sum of each row of [R, V], float64 [R]."""
    return blocks(weights).sum(2).double().sum(1)
