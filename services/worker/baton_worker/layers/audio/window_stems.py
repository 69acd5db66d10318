"""Windows of a spectrogram to the first states of an encoder."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from baton_worker import spec
from baton_worker.layers.audio.batch_norm import BatchNorm
from baton_worker.layers.audio.convolution import SpectrogramConv2d
from baton_worker.layers.audio.frame_embedding import FrameConvolution
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.invariant import GELU
from baton_worker.layers.layer import Layer
from baton_worker.layers.linear import Linear

_LONGEST_PERIOD = 10_000.0
_AT_ONCE = 16
"""Windows whose convolutions run together."""


class SpectrogramStem(nn.Module):
    """See `spec.SpectrogramStem`."""

    def __init__(self, settings: spec.SpectrogramStem, context: BuildContext) -> None:
        super().__init__()
        here, inputs, steps = replace(context, name=str), 1, list[nn.Module]()
        for name in settings.names:
            steps.append(SpectrogramConv2d(name, inputs, settings.channels, here))
            inputs = settings.channels
        self.steps = nn.ModuleList(steps)
        wide = settings.channels * settings.out_bins
        self.project = Linear(wide, {settings.out_name: settings.hidden}, here)

    def forward(self, windows: Tensor, last: int) -> list[Tensor]:
        """[windows, bins, frames] to the states of each window; the first `last` frames of the last
        window are no padding."""
        return [state for some in torch.split(windows, _AT_ONCE) for state in self._states(some)]

    def _states(self, windows: Tensor) -> Tensor:
        x = windows[:, None]
        for step in self.steps:
            x = GELU(step(x))
        rows = x.permute(0, 3, 1, 2).flatten(2)
        out: Tensor = self.project(rows.flatten(0, 1))
        return torch.unflatten(out, 0, rows.shape[:2])


class FrameStem(nn.Module):
    """See `spec.FrameStem`."""

    def __init__(self, settings: spec.FrameStem, context: BuildContext) -> None:
        super().__init__()
        self.steps = nn.ModuleList(FrameConvolution(step, context) for step in settings.steps)

    def forward(self, windows: Tensor, last: int) -> list[Tensor]:
        """See `SpectrogramStem.forward`."""
        parts = [*torch.split(windows[:-1], _AT_ONCE), windows[-1:, :, :last]]
        return [state for part in parts if len(part) for state in self._states(part)]

    def _states(self, windows: Tensor) -> Tensor:
        for step in self.steps:
            windows = step(windows)
        return windows.transpose(1, 2)


class PatchStem(Layer):
    """See `spec.PatchStem`."""

    def __init__(self, settings: spec.PatchStem, context: BuildContext) -> None:
        super().__init__()
        here, own = replace(context, name=str), settings
        self._settings = settings
        self.norm = BatchNorm(f"{own.prefix}.init_bn", own.bins, here)
        self.weight = context.empty(own.hidden, 1, own.bins, own.size)
        self.bias = context.empty(own.hidden)
        self.times = context.empty(1, own.hidden, 1, own.positions)
        self.pitch = context.empty(1, own.hidden, 1, 1)

    def weight_targets(self) -> Iterator[tuple[str, Tensor]]:
        """The projection, and the positions over time and over the one bin."""
        prefix = self._settings.prefix
        yield f"{prefix}.patch_embed.proj.weight", self.weight
        yield f"{prefix}.patch_embed.proj.bias", self.bias
        yield f"{prefix}.time_pos_embed", self.times
        yield f"{prefix}.freq_pos_embed", self.pitch

    def forward(self, windows: Tensor, last: int) -> list[Tensor]:
        """See `SpectrogramStem.forward`; `last` counts hops."""
        frames = self._settings.frames(last)
        parts = [*torch.split(windows[:-1], _AT_ONCE), windows[-1:, :, :frames]]
        return [state for part in parts if len(part) for state in self._states(part)]

    def _states(self, windows: Tensor) -> Tensor:
        """[windows, states, hidden]"""
        x = self.norm(windows)[:, None]
        x = F.conv2d(x, self.weight, self.bias, (self._settings.bins, self._settings.size))
        x = x + self.times[..., : x.shape[-1]] + self.pitch
        return x[:, :, 0].transpose(1, 2)


def sine_positions(count: int, hidden: int, like: Tensor) -> Tensor:
    """[count, hidden]: sines and cosines of periods from 1 to 10 000 (Vaswani et al. 2017,
    arXiv:1706.03762), all sines first."""
    half = hidden // 2
    step = math.log(_LONGEST_PERIOD) / (half - 1)
    rates = torch.exp(torch.arange(half, dtype=torch.float32, device=like.device) * -step)
    phases = torch.arange(count, device=like.device)[:, None] * rates
    return torch.cat((phases.sin(), phases.cos()), dim=1).to(like.dtype)


STEMS: dict[type, Callable[[Any, BuildContext], FrameStem | SpectrogramStem | PatchStem]] = {
    spec.FrameStem: FrameStem,
    spec.SpectrogramStem: SpectrogramStem,
    spec.PatchStem: PatchStem,
}
"""The stem of a spec."""
