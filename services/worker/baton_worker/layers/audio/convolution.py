"""Convolutions over frames and over spectrograms."""

from __future__ import annotations

from collections.abc import Iterator

import torch.nn.functional as F
from torch import Tensor

from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.layer import Layer
from baton_worker.layers.linear import Linear


class Pointwise(Linear):
    """A linear layer that checkpoints store as a convolution with windows of one frame,
    [outputs, inputs, 1]."""

    def __init__(self, name: str, inputs: int, outputs: int, context: BuildContext) -> None:
        super().__init__(inputs, {name: outputs}, context, bias=True)

    def weight_targets(self) -> Iterator[tuple[str, Tensor]]:
        """The weight in convolution shape, and the bias."""
        for name, rows in super().weight_targets():
            yield name, rows[:, :, None] if rows.ndim == 2 else rows


class DepthwiseConv1d(Layer):
    """A convolution of each channel by itself, with a window of `kernel` frames around every
    frame; or, with `causal`, of the `kernel` frames up to it."""

    def __init__(
        self,
        name: str,
        channels: int,
        kernel: int,
        context: BuildContext,
        *,
        causal: bool,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self._name, left = context.name(name), kernel - 1 if causal else kernel // 2
        self._padding = (left, kernel - 1 - left)
        self.weight = context.empty(channels, 1, kernel)
        self.bias = context.empty(channels) if bias else None

    def weight_targets(self) -> Iterator[tuple[str, Tensor]]:
        """Weight and bias."""
        yield f"{self._name}.weight", self.weight
        if self.bias is not None:
            yield f"{self._name}.bias", self.bias

    def forward(self, x: Tensor) -> Tensor:
        """[frames, channels] to the same."""
        padded = F.pad(x.T, self._padding)
        return F.conv1d(padded, self.weight, self.bias, groups=len(self.weight)).T


class SpectrogramConv2d(Layer):
    """A convolution over [channels, height, width] with a window of `size` every `stride`, behind
    `padding` zeros: (left, right, top, bottom). With `depthwise`, of each channel by itself."""

    def __init__(
        self,
        name: str,
        inputs: int,
        outputs: int,
        context: BuildContext,
        *,
        size: tuple[int, int] = (3, 3),
        stride: tuple[int, int] = (2, 2),
        padding: tuple[int, int, int, int] = (1, 1, 1, 1),
        depthwise: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self._name, self._stride, self._padding = context.name(name), stride, padding
        self._groups = inputs if depthwise else 1
        self.weight = context.empty(outputs, inputs // self._groups, *size)
        self.bias = context.empty(outputs) if bias else None

    def weight_targets(self) -> Iterator[tuple[str, Tensor]]:
        """Weight and bias."""
        yield f"{self._name}.weight", self.weight
        if self.bias is not None:
            yield f"{self._name}.bias", self.bias

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs, H, W] to [N, outputs, H', W']."""
        padded = F.pad(x, self._padding)
        return F.conv2d(padded, self.weight, self.bias, self._stride, groups=self._groups)
