"""Frames of a spectrogram to the first states of an encoder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.embedding import Table
from baton_worker.layers.layer import Layer
from baton_worker.layers.mlp import activation


class FrameConvolution(Layer):
    """See `spec.FrameConvolution`."""

    def __init__(self, settings: spec.FrameConvolution, context: BuildContext) -> None:
        super().__init__()
        self._settings, self._activation = settings, activation(settings.activation)
        self.weight = context.empty(settings.outputs, settings.inputs, settings.size)
        self.bias = context.empty(settings.outputs)

    def weight_targets(self) -> Iterator[tuple[str, Tensor]]:
        """Weight and bias."""
        yield f"{self._settings.name}.weight", self.weight
        yield f"{self._settings.name}.bias", self.bias

    def forward(self, x: Tensor) -> Tensor:
        """[1, inputs, frames] to [1, outputs, states]."""
        settings, around = self._settings, self._settings.size // 2
        if settings.causal:
            x, around = F.pad(x, (settings.size - settings.stride, 0)), 0
        return self._activation(F.conv1d(x, self.weight, self.bias, settings.stride, around))


class FrameEmbedding(nn.Module):
    """The stem and the positions of a `spec.AudioStack`."""

    def __init__(self, stack: spec.AudioStack, context: BuildContext) -> None:
        super().__init__()
        here = replace(context, name=str)
        self.stem = nn.ModuleList(FrameConvolution(step, here) for step in stack.stem)
        self.positions = Table(stack.num_positions, stack.hidden, "positions", context)

    def forward(self, frames: Tensor, num_states: int) -> Tensor:
        """The first states of one chunk.

        Args:
            frames: [mels, frames], as many as the states are made of at least, unless the chunk
                ends before.

        Returns:
            [num_states, hidden].
        """
        x = frames[None]
        for step in self.stem:
            x = step(x)
        numbers = torch.arange(num_states, device=frames.device)
        states: Tensor = x[0, :, :num_states].T + self.positions(numbers)
        return states
