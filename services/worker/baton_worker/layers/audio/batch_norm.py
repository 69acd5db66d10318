"""Batch normalisation by the statistics of training."""

from __future__ import annotations

from collections.abc import Iterator

import torch.nn.functional as F
from torch import Tensor

from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.layer import Layer

_EPS = 1e-5


class BatchNorm(Layer):
    """Batch normalisation by the statistics of training (arXiv:1502.03167)."""

    def __init__(self, name: str, channels: int, context: BuildContext) -> None:
        super().__init__()
        self._name, names = context.name(name), ("weight", "bias", "running_mean", "running_var")
        self._parts = {part: context.empty(channels) for part in names}
        for part, tensor in self._parts.items():
            self.register_parameter(part, tensor)

    def weight_targets(self) -> Iterator[tuple[str, Tensor]]:
        """Scale, bias, mean and variance."""
        for part, tensor in self._parts.items():
            yield f"{self._name}.{part}", tensor

    def forward(self, x: Tensor) -> Tensor:
        """[n, channels, ...] to the same."""
        scale, bias, mean, variance = self._parts.values()
        return F.batch_norm(x, mean, variance, scale, bias, eps=_EPS)
