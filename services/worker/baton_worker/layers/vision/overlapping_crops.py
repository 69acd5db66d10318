"""Overlapping crops, each window of patches of which becomes one embedding: see
`spec.OverlappingCrops`."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.linear import Linear
from baton_worker.layers.mlp import activation
from baton_worker.layers.vision.arrangement import Arrangement, Grid

POOL = 2
"""Patches along a side of a window."""


class OverlappingCrops(Arrangement):
    """The grid is (1, rows, columns) of crops; states are those of the whole image, then those of
    its crops row by row."""

    def __init__(self, settings: spec.OverlappingCrops, context: BuildContext) -> None:
        super().__init__()
        self._settings, name = settings, settings.name
        here = replace(context, name=lambda part: f"{name}.{part}")
        width, inputs = settings.width, settings.inputs
        heads, kv = (
            count * settings.head_dim for count in (settings.num_heads, settings.num_kv_heads)
        )
        self.query = Linear(inputs, {"image_pooling_2d.wq": heads}, here, bias=True)
        parts = {"image_pooling_2d.wk": kv, "image_pooling_2d.wv": kv}
        self.key_value = Linear(inputs, parts, here, bias=True)
        self.output = Linear(heads, {"image_pooling_2d.wo": width}, here, bias=True)
        gates = {"image_projector.w1": settings.intermediate}
        self.gate = Linear(width, gates, here)
        self.up = Linear(width, {"image_projector.w3": settings.intermediate}, here)
        down = {"image_projector.w2": settings.hidden}
        self.down = Linear(settings.intermediate, down, here)
        self._activation = activation(settings.activation)

    def num_tokens(self, count: int, grid: Grid) -> int:
        """Windows of the whole image and of its crops side by side."""
        return len(self._windows(grid))

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """[(1 + rows * columns) * side^2, inputs] to [windows, hidden]."""
        windows = self._windows(grid).to(x.device)
        inside = windows >= 0
        cells = x[windows.clamp(min=0)] * inside[..., None].to(x.dtype)
        mean = cells.sum(1) / inside.sum(1, keepdim=True).to(x.dtype)
        states = self._pooled(mean, cells, inside)
        out: Tensor = self.down(self._activation(self.gate(states)) * self.up(states))
        return out

    def _pooled(self, mean: Tensor, cells: Tensor, inside: Tensor) -> Tensor:
        """The mean [N, C] of each window attends to its patches [N, P, C] that are `inside`."""
        s, (count, places) = self._settings, inside.shape
        query = self.query(mean).view(count, 1, s.num_heads, s.head_dim).transpose(1, 2)
        pairs = self.key_value(cells.flatten(0, 1))
        key, value = (
            part.view(count, places, s.num_kv_heads, s.head_dim).transpose(1, 2)
            for part in pairs.chunk(2, dim=-1)
        )
        attended = F.scaled_dot_product_attention(
            query,
            key,
            value,
            inside[:, None, None],
            scale=1 / math.sqrt(s.head_dim),
            enable_gqa=s.num_heads != s.num_kv_heads,
        )
        out: Tensor = self.output(attended.flatten(1))
        return out

    def _windows(self, grid: Grid) -> Tensor:
        return windows_of(self._settings.side, self._settings.margins, grid[1], grid[2])


@lru_cache(maxsize=64)
def windows_of(side: int, margins: tuple[int, int], rows: int, columns: int) -> Tensor:
    """The patches of each window, int64 [windows, POOL * POOL], -1 for none: of the whole image of
    `side` x `side` patches, then of what its crops show without the `margins` of patches that a
    neighbour shows, too."""
    whole = torch.arange(side**2).view(side, side)
    numbers = torch.arange(rows * columns * side**2).view(rows, columns, side, side) + side**2
    plane = torch.cat(
        [
            torch.cat(
                [
                    numbers[row, column][_inner(row, rows, side, margins)][
                        :, _inner(column, columns, side, margins)
                    ]
                    for column in range(columns)
                ],
                dim=1,
            )
            for row in range(rows)
        ]
    )
    return torch.cat([_pooling(whole), _pooling(plane)])


def _inner(at: int, count: int, side: int, margins: tuple[int, int]) -> slice:
    """The part of a crop that no neighbour shows, or that is in its middle."""
    before = margins[0] if at > 0 else 0
    after = margins[1] if at < count - 1 else 0
    return slice(before, side - after)


def _pooling(plane: Tensor) -> Tensor:
    """[rows, columns] to windows, what fills the last ones up on both sides."""
    below, right = (-count % POOL for count in plane.shape)
    around = (right // 2, right - right // 2, below // 2, below - below // 2)
    padded = F.pad(plane, around, value=-1)
    cells = padded.view(len(padded) // POOL, POOL, -1, POOL)
    return cells.transpose(1, 2).reshape(-1, POOL**2)
