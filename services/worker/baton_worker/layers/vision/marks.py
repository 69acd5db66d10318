"""Vectors between tiles: see `spec.Marks`."""

from __future__ import annotations

import torch
from torch import Tensor

from baton_worker import spec
from baton_worker.layers.vision.arrangement import Arrangement, Grid
from baton_worker.layers.vision.projector import Codebook

START, GRID, COLUMN, ROW, END = range(5)
"""Rows of the table of marks."""


class Marks(Arrangement):
    """The whole image, then its tiles, with a mark after each part."""

    def __init__(self, settings: spec.Marks, codebook: Codebook) -> None:
        super().__init__()
        self._codebook, self._backwards = codebook, settings.backwards

    def num_tokens(self, count: int, grid: Grid) -> int:
        """With the marks."""
        return count + len(order(grid)) - 1 - _tiles(grid)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """[count, hidden] of the whole image and its tiles to [num_tokens, hidden]."""
        tiles, marks = x.view(1 + _tiles(grid), -1, x.shape[-1]), self._codebook.reserved
        marks = marks.flip(0) if self._backwards else marks
        parts, tile = list[Tensor](), 0
        for mark in order(grid):
            if mark is None:
                parts.append(tiles[tile])
                tile += 1
            else:
                parts.append(marks[mark : mark + 1])
        return torch.cat(parts)


class Ends(Arrangement):
    """See `spec.Ends`."""

    def __init__(self, codebook: Codebook) -> None:
        super().__init__()
        self._codebook = codebook

    def num_tokens(self, count: int, grid: Grid) -> int:
        """With both ends."""
        return count + 2

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """[count, hidden] to [num_tokens, hidden]."""
        ends = self._codebook.reserved[:2].to(x.dtype)
        return torch.cat((ends[:1], x, ends[1:]))


def _tiles(grid: Grid) -> int:
    """Tiles beside the whole image: one tile is the whole image."""
    return grid[1] * grid[2] if grid[1] * grid[2] > 1 else 0


def order(grid: Grid) -> list[int | None]:
    """Marks, and None for each tile, the whole image first."""
    marks: list[int | None] = [START, None, GRID]
    for tile in range(_tiles(grid)):
        if tile:
            marks.append(COLUMN if tile % grid[2] else ROW)
        marks.append(None)
    return [*marks, END]
