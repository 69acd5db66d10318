"""Windows of a spectrogram to the first states of an encoder."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from baton_worker import spec
from baton_worker.layers.audio.convolution import SpectrogramConv2d
from baton_worker.layers.audio.frame_embedding import FrameConvolution
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.invariant import GELU
from baton_worker.layers.linear import Linear

_LONGEST_PERIOD = 10_000.0
_AT_ONCE = 16
"""Windows whose convolutions run together."""


class SpectrogramStem(nn.Module):
    """See `spec.SpectrogramStem`."""

    def __init__(self, settings: spec.SpectrogramStem, site: BuildContext) -> None:
        super().__init__()
        here, inputs, steps = replace(site, name=str), 1, list[nn.Module]()
        for name in settings.names:
            steps.append(SpectrogramConv2d(name, inputs, settings.channels, here))
            inputs = settings.channels
        self.steps = nn.ModuleList(steps)
        wide = settings.channels * settings.out_bins
        self.project = Linear(wide, {settings.out_name: settings.hidden}, here)

    def forward(self, windows: Tensor, last: int) -> list[Tensor]:
        """[windows, bins, frames], of which `last` of the last window are no padding, to the states
        of each window."""
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

    def __init__(self, settings: spec.FrameStem, site: BuildContext) -> None:
        super().__init__()
        self.steps = nn.ModuleList(FrameConvolution(step, site) for step in settings.steps)

    def forward(self, windows: Tensor, last: int) -> list[Tensor]:
        """See `SpectrogramStem.forward`."""
        parts = [*torch.split(windows[:-1], _AT_ONCE), windows[-1:, :, :last]]
        return [state for part in parts if len(part) for state in self._states(part)]

    def _states(self, windows: Tensor) -> Tensor:
        for step in self.steps:
            windows = step(windows)
        return windows.transpose(1, 2)


def sine_positions(count: int, hidden: int, like: Tensor) -> Tensor:
    """[count, hidden]: sines and cosines of periods from 1 to 10 000 (Vaswani et al. 2017,
    arXiv:1706.03762), all sines first."""
    half = hidden // 2
    step = math.log(_LONGEST_PERIOD) / (half - 1)
    rates = torch.exp(torch.arange(half, dtype=torch.float32, device=like.device) * -step)
    phases = torch.arange(count, device=like.device)[:, None] * rates
    return torch.cat((phases.sin(), phases.cos()), dim=1).to(like.dtype)
