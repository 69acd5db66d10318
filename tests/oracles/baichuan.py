"""Baichuan 2 13B (arXiv:2309.10305): ALiBi (arXiv:2108.12409) and a head with rows of length 1."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.oracles.plain import PlainLlama


class Baichuan(PlainLlama):
    """Six heads: the slopes of four, 1/4 to 1/256, and two of those of eight."""

    SLOPES = (2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3)

    def place(self, heads: Tensor) -> Tensor:
        return heads

    def bias(self, num_heads: int, length: int) -> Tensor:
        assert num_heads == len(self.SLOPES)
        distance = torch.arange(length)[None, :] - torch.arange(length)[:, None]
        return torch.tensor(self.SLOPES)[:, None, None] * distance

    def head(self, x: Tensor) -> Tensor:
        weight = self.tensors["lm_head.weight"]
        return x @ (weight / weight.square().sum(1, keepdim=True).sqrt()).T
