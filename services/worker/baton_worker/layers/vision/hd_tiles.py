"""Tiles side by side without their padding, then the whole image: see `spec.HdTiles`."""

from __future__ import annotations

import torch
from torch import Tensor

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.embedding import Learned
from baton_worker.layers.vision.arrangement import Arrangement, Grid
from baton_worker.layers.vision.grid import Size

MERGE = 2
"""Patches along a side of what becomes one state."""


class HdTiles(Arrangement):
    """The grid is (1, rows, columns) of the patches of all tiles that are no padding, which is at
    the right or at the bottom. States have the channels of the stack."""

    def __init__(self, settings: spec.HdTiles, width: int, context: BuildContext) -> None:
        super().__init__()
        self._side = settings.side
        self.newline = Learned((1, 1, 1, width), settings.newline, context)
        self.separator = Learned((1, 1, width), settings.separator, context)

    def unpadded(self, grid: Grid) -> list[Size]:
        """Rows and columns of patches that are no padding, of the whole image, then of its tiles
        row by row."""
        side, counts = self._side, grid[1:]
        rows, columns = ([min(side, n - at) for at in range(0, n, side)] for n in counts)
        return [(side, side), *((tall, wide) for tall in rows for wide in columns)]

    def num_tokens(self, count: int, grid: Grid) -> int:
        """With a vector after every row and one between tiles and whole."""
        side, (rows, columns) = self._side // MERGE, _unpadded_places(grid)
        return rows * (columns + 1) + 1 + side * (side + 1)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """[(1 + tiles) * (side / 2)^2, width], the whole image first."""
        side, (tall, wide) = self._side // MERGE, _unpadded_places(grid)
        rows, columns = -(-tall // side), -(-wide // side)
        whole, tiles = torch.split(x, [side**2, len(x) - side**2])
        cells = tiles.view(rows, columns, side, side, -1).transpose(1, 2)
        plane = cells.reshape(rows * side, columns * side, -1)[:tall, :wide]
        separator = self.separator().view(1, -1).to(x.dtype)
        parts = (self._ended(plane), separator, self._ended(whole.view(side, side, -1)))
        return torch.cat(parts)

    def _ended(self, plane: Tensor) -> Tensor:
        """[rows, columns, width] to [rows * (columns + 1), width]."""
        ends = self.newline().view(1, 1, -1).to(plane.dtype).expand(len(plane), 1, -1)
        return torch.cat((plane, ends), dim=1).flatten(0, 1)


def _unpadded_places(grid: Grid) -> Size:
    """Rows and columns of the states of tiles: that of several patches counts if its first one is
    no padding."""
    return -(-grid[1] // MERGE), -(-grid[2] // MERGE)
