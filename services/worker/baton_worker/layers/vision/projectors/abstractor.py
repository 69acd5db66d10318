"""The projector of Honeybee and its kin, RegNet blocks around a smaller plane: see
`spec.Abstractor`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.embedding import Learned
from baton_worker.layers.invariant import SILU, sigmoid
from baton_worker.layers.layer import Layer
from baton_worker.layers.linear import Linear
from baton_worker.layers.norm import norm
from baton_worker.layers.vision.grid import Size
from baton_worker.layers.vision.grid_positions import interpolation
from baton_worker.layers.vision.sized_steps import PartByPart

_SQUEEZED = 0.25
"""Channels of the squeeze per channel of a block's input."""
_resized = interpolation("bicubic", corners=False, antialias=True)


class Abstractor(PartByPart):
    """Blocks, a smaller plane, blocks."""

    def __init__(self, settings: spec.Abstractor, context: BuildContext) -> None:
        super().__init__()
        self._settings, inputs, width = settings, settings.inputs, settings.width
        here = replace(context, name=lambda part: f"{settings.name}.{part}")
        self.positions = None
        if settings.positions:
            self.positions = Learned((1, settings.positions**2, inputs), "pos_emb", here)
        self.first = _stage("net.0", settings.depth, inputs, width, here)
        wide = width * settings.merge**2
        self.second = _stage("net.2", settings.depth, wide, width, here)

    def after(self, size: Size) -> Size:
        """Rows and columns of the smaller plane."""
        if self._settings.pooled:
            return self._settings.pooled, self._settings.pooled
        return size[0] // self._settings.merge, size[1] // self._settings.merge

    def part(self, x: Tensor, size: Size) -> Tensor:
        """[rows * columns, inputs] to [states, width]."""
        if self.positions is not None:
            x = x + _resized(self.positions()[0], size, 1).to(x.dtype)
        for block in self.first:
            x = block(x, size)
        x = self._smaller(x, size)
        for block in self.second:
            x = block(x, self.after(size))
        return x

    def _smaller(self, x: Tensor, size: Size) -> Tensor:
        """[rows * columns, width] to the states of the smaller plane; with `merge` the values of
        one channel lie side by side."""
        plane = _plane(x, size)
        if self._settings.pooled:
            return F.adaptive_avg_pool2d(plane, self.after(size)).flatten(1).T
        return F.unfold(plane[None], self._settings.merge, stride=self._settings.merge)[0].T


def _stage(name: str, depth: int, inputs: int, width: int, context: BuildContext) -> nn.ModuleList:
    widths = [inputs, *[width] * depth]
    return nn.ModuleList(
        _Block(f"{name}.b{number + 1}", widths[number], width, context) for number in range(depth)
    )


def _plane(x: Tensor, size: Size) -> Tensor:
    """[rows * columns, C] to [C, rows, columns]."""
    return torch.unflatten(x.T, 1, size)


class _Block(nn.Module):
    """RegNet's block with one channel to a group and squeeze-and-excitation (Radosavovic et al.
    2020, arXiv:2003.13678): silu(x + convolutions(x)), norms over channels."""

    def __init__(self, name: str, inputs: int, width: int, context: BuildContext) -> None:
        super().__init__()
        here = replace(context, name=lambda part: context.name(f"{name}.{part}"))
        self.enter = _Pointwise("conv1.conv", inputs, width, here)
        self.around = _Depthwise("conv2.conv", width, here)
        self.leave = _Pointwise("conv3.conv", width, width, here)
        squeezed = round(inputs * _SQUEEZED)
        self.squeeze = _Pointwise("se.fc1", width, squeezed, here, bias=True)
        self.excite = _Pointwise("se.fc2", squeezed, width, here, bias=True)
        flat = spec.Norm(1e-5, "layer", bias=True)
        self.norms = nn.ModuleList(norm(flat, width, f"conv{n}.bn", here) for n in (1, 2, 3))
        self.shortcut = self.shortcut_norm = None
        if inputs != width:
            self.shortcut = _Pointwise("downsample.conv", inputs, width, here)
            self.shortcut_norm = norm(flat, width, "downsample.bn", here)

    def forward(self, x: Tensor, size: Size) -> Tensor:
        """[rows * columns, inputs] to [rows * columns, width]."""
        first, second, third = self.norms
        inner = SILU(first(self.enter(x)))
        inner = SILU(second(self.around(inner, size)))
        share = sigmoid(self.excite(SILU(self.squeeze(inner.mean(0, keepdim=True)))))
        inner = third(self.leave(inner * share))
        if self.shortcut is not None and self.shortcut_norm is not None:
            x = self.shortcut_norm(self.shortcut(x))
        return SILU(inner + x)


class _Pointwise(Linear):
    """A convolution of 1 x 1."""

    def __init__(
        self, name: str, inputs: int, outputs: int, context: BuildContext, *, bias: bool = False
    ) -> None:
        super().__init__(inputs, {name: outputs}, context, bias=bias)

    def weight_targets(self) -> Iterator[tuple[str, Tensor]]:
        """The weight in convolution shape, and the bias if there is one."""
        for name, rows in super().weight_targets():
            yield name, rows[:, :, None, None] if rows.ndim == 2 else rows


class _Depthwise(Layer):
    """A depthwise convolution of 3 x 3, without a bias."""

    def __init__(self, name: str, width: int, context: BuildContext) -> None:
        super().__init__()
        self._name = context.name(name)
        self.weight = context.empty(width, 1, 3, 3)

    def weight_targets(self) -> Iterator[tuple[str, Tensor]]:
        """The weight."""
        yield f"{self._name}.weight", self.weight

    def forward(self, x: Tensor, size: Size) -> Tensor:
        """[rows * columns, C] to the same."""
        plane = F.conv2d(_plane(x, size)[None], self.weight, padding=1, groups=x.shape[1])
        return plane[0].flatten(1).T
