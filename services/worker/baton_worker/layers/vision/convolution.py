"""Convolutions with overlapping windows, and the norm between them."""

from __future__ import annotations

from collections.abc import Iterator

import torch.nn.functional as F
from torch import Tensor

from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.layer import Layer

GROUPS = 32
"""Of channels, which are normed together."""


class Convolution2d(Layer):
    """A convolution with windows of `size` x `size` and a bias, to the same height and width; or,
    with `halves`, to half of both, with zeros to the right and below; or with a window every
    `stride` and so many zeros around."""

    def __init__(
        self,
        name: str,
        inputs: int,
        outputs: int,
        context: BuildContext,
        *,
        size: int = 3,
        halves: bool = False,
        stride: int = 1,
        padding: int | None = None,
    ) -> None:
        super().__init__()
        self._name, self._halves, self._stride = context.name(name), halves, stride
        self._padding = size // 2 if padding is None else padding
        self.weight, self.bias = context.empty(outputs, inputs, size, size), context.empty(outputs)

    def weight_targets(self) -> Iterator[tuple[str, Tensor]]:
        """Weight and bias."""
        yield f"{self._name}.weight", self.weight
        yield f"{self._name}.bias", self.bias

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs, H, W] to [N, outputs, H, W]."""
        if self._halves:
            return F.conv2d(F.pad(x, (0, 1, 0, 1)), self.weight, self.bias, stride=2)
        return F.conv2d(x, self.weight, self.bias, self._stride, self._padding)


class GroupNorm(Layer):
    """Group normalisation (Wu and He 2018, arXiv:1803.08494)."""

    def __init__(self, name: str, channels: int, context: BuildContext) -> None:
        super().__init__()
        self._name = context.name(name)
        self.weight, self.bias = context.empty(channels), context.empty(channels)

    def weight_targets(self) -> Iterator[tuple[str, Tensor]]:
        """Scale and bias."""
        yield f"{self._name}.weight", self.weight
        yield f"{self._name}.bias", self.bias

    def forward(self, x: Tensor) -> Tensor:
        """[N, channels, H, W] to the same."""
        return F.group_norm(x, GROUPS, self.weight, self.bias, eps=1e-6)
