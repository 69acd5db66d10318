"""Tiles, then the whole image, which is of another size: see `spec.ViewTiles`."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.embedding import Learned
from baton_worker.layers.vision.arrangement import Arrangement, Grid
from baton_worker.layers.vision.grid import Size


class ViewTiles(Arrangement):
    """The grid is (1, rows, columns) of tiles; one tile is none, and the whole image is alone."""

    def __init__(self, settings: spec.ViewTiles, hidden: int, context: BuildContext) -> None:
        super().__init__()
        self._settings = settings
        self.newline = Learned((hidden,), settings.newline, context) if settings.newline else None
        self.separator = Learned((hidden,), settings.separator, context)

    def parts(self, grid: Grid) -> list[Size]:
        """Of the whole image, then of its tiles row by row."""
        whole, tile = self._settings.whole, self._settings.tile
        return [(whole, whole), *[(tile, tile)] * _tiles(grid)]

    def num_tokens(self, count: int, grid: Grid) -> int:
        """With a vector at the end, and after each row if there are such."""
        if self.newline is None:
            return count + 1
        whole, tile = self._sides(count, grid)
        return count + 1 + whole + (grid[1] * tile if _tiles(grid) else 0)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """[embeddings of the whole image and its tiles, hidden], the whole image first."""
        side, tile = self._sides(len(x), grid)
        whole, tiles = torch.split(x, [side**2, len(x) - side**2])
        if self.newline is not None:
            rows, columns = grid[1:] if _tiles(grid) else (0, 0)
            whole = self._ended(whole.view(side, side, -1))
            cells = tiles.view(rows, columns, tile, tile, x.shape[1]).transpose(1, 2)
            tiles = self._ended(cells.reshape(rows * tile, columns * tile, x.shape[1]))
        return torch.cat((tiles, whole, self.separator()[None].to(x.dtype)))

    def _sides(self, count: int, grid: Grid) -> tuple[int, int]:
        """Embeddings in a row of the whole image and of a tile."""
        shares = self._settings.whole**2 + _tiles(grid) * self._settings.tile**2
        whole = math.isqrt(count * self._settings.whole**2 // shares)
        tile = math.isqrt((count - whole**2) // max(1, _tiles(grid)))
        return whole, tile

    def _ended(self, plane: Tensor) -> Tensor:
        """[rows, columns, hidden] to [rows * (columns + 1), hidden]."""
        assert self.newline is not None
        ends = self.newline().to(plane.dtype).expand(len(plane), 1, -1)
        return torch.cat((plane, ends), dim=1).flatten(0, 1)


def _tiles(grid: Grid) -> int:
    return grid[1] * grid[2] if grid[1] * grid[2] > 1 else 0
