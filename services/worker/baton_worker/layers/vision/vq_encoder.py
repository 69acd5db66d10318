"""The encoder of a VQ-VAE: images to codes. See `spec.VqTower`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.embedding import Table
from baton_worker.layers.vision.convolution import Convolution2d, GroupNorm

_CHANNELS = 3


class VqEncoder(nn.Module):
    """Pixels to codes."""

    def __init__(self, tower: spec.VqTower, context: BuildContext) -> None:
        super().__init__()
        here = replace(context, name=lambda part: f"{tower.name}.{part}")
        last = tower.channels[-1]
        self.first = Convolution2d("encoder.conv_in", _CHANNELS, tower.base, here)
        self.blocks = nn.ModuleList([*_levels(tower, here), *_middle(tower, here)])
        self.norm = GroupNorm("encoder.norm_out", last, here)
        self.last = Convolution2d("encoder.conv_out", last, tower.latent, here)
        self.project = Convolution2d("quant_conv", tower.latent, tower.code_width, here, size=1)
        self.codes = Table(len(tower.tokens), tower.code_width, "quantize.embedding", here)
        self.progress = 0

    def forward(self, pixels: Tensor) -> Tensor:
        """[3, image, image] to int64 [codes], row by row: the nearest by Euclidean distance. -1
        stands for a state that is not finite."""
        x = self.first(pixels[None])
        for block in self.blocks:
            x = block(x)
            self.progress += 1
        states = self.project(self.last(F.silu(self.norm(x))))[0].flatten(1).T
        table = self.codes.weight
        assert table is not None
        distances = states.square().sum(1, keepdim=True) + table.square().sum(1)
        nearest: Tensor = (distances - 2 * states @ table.T).argmin(1)
        return nearest.where(torch.isfinite(states).all(1), -1)


class _ResidualBlock(nn.Module):
    """x + conv(silu(norm(conv(silu(norm(x)))))), projected where the number of channels changes."""

    def __init__(self, name: str, inputs: int, outputs: int, context: BuildContext) -> None:
        super().__init__()
        self.norms = nn.ModuleList(
            [
                GroupNorm(f"{name}.norm1", inputs, context),
                GroupNorm(f"{name}.norm2", outputs, context),
            ]
        )
        self.first = Convolution2d(f"{name}.conv1", inputs, outputs, context)
        self.second = Convolution2d(f"{name}.conv2", outputs, outputs, context)
        self.project: nn.Module = nn.Identity()
        if inputs != outputs:
            self.project = Convolution2d(f"{name}.nin_shortcut", inputs, outputs, context, size=1)

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs, H, W] to [N, outputs, H, W]."""
        inner = self.first(F.silu(self.norms[0](x)))
        out: Tensor = self.project(x) + self.second(F.silu(self.norms[1](inner)))
        return out


class _Attention(nn.Module):
    """x + project(attention(norm(x))) of one head over all places."""

    def __init__(self, name: str, channels: int, context: BuildContext) -> None:
        super().__init__()
        self.norm = GroupNorm(f"{name}.norm", channels, context)
        parts = ("q", "k", "v", "proj_out")
        self.parts = nn.ModuleList(
            Convolution2d(f"{name}.{part}", channels, channels, context, size=1) for part in parts
        )

    def forward(self, x: Tensor) -> Tensor:
        """[N, channels, H, W] to the same."""
        normed = self.norm(x)
        *parts, project = self.parts
        query, key, value = (part(normed).flatten(2).transpose(1, 2) for part in parts)
        attended = F.scaled_dot_product_attention(query, key, value)
        out: Tensor = x + project(attended.transpose(1, 2).reshape(x.shape))
        return out


def _levels(tower: spec.VqTower, context: BuildContext) -> Iterator[nn.Module]:
    """The levels, and what halves the sides between them."""
    inputs = tower.base
    for level, outputs in enumerate(tower.channels):
        name = f"encoder.down.{level}"
        for block in range(tower.num_blocks):
            yield _ResidualBlock(f"{name}.block.{block}", inputs, outputs, context)
            inputs = outputs
            if tower.attends[level]:
                yield _Attention(f"{name}.attn.{block}", outputs, context)
        if level < len(tower.channels) - 1:
            yield Convolution2d(f"{name}.downsample.conv", outputs, outputs, context, halves=True)


def _middle(tower: spec.VqTower, context: BuildContext) -> Iterator[nn.Module]:
    """Two blocks behind the levels, and attention between them."""
    channels = tower.channels[-1]
    yield _ResidualBlock("encoder.mid.block_1", channels, channels, context)
    if tower.middle_attends:
        yield _Attention("encoder.mid.attn_1", channels, context)
    yield _ResidualBlock("encoder.mid.block_2", channels, channels, context)
