"""Combines the embeddings of the parts of an image."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from baton.slice_rules import SliceRules
from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.embedding import Learned
from baton_worker.layers.vision.grid import Size

Grid = tuple[int, int, int]


class Arrangement(nn.Module):
    """Parts in order, unchanged."""

    def parts(self, grid: Grid) -> list[Size]:
        """Rows and columns of patches of what attends to itself alone, in an image that comes as
        patches: each frame."""
        return [(grid[1], grid[2])] * grid[0]

    def unpadded(self, grid: Grid) -> list[Size] | None:
        """Rows and columns of the patches of each part, from its top left, that are no padding;
        None if all are."""
        return None

    def num_tokens(self, count: int, grid: Grid) -> int:
        """Embeddings of an image whose parts have `count`."""
        return count

    def sample_tiles(self) -> tuple[int, Grid]:
        """Tiles and grid of an image, for a measurement: as many tiles as one may have if their
        number follows from the grid."""
        return 1, (1, 1, 1)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """[count, hidden] of the parts to [num_tokens, hidden] of the image."""
        return x


class Slices(Arrangement):
    """See `spec.Slices`."""

    def __init__(self, settings: spec.Slices) -> None:
        super().__init__()
        self._rules = SliceRules(settings.scale, settings.most, settings.patch)

    def parts(self, grid: Grid) -> list[Size]:
        """Of the whole image and its slices; the grid is (1, height, width) of the image."""
        return self._rules.parts((grid[1], grid[2]))


class SplitTiles(Arrangement):
    """See `spec.SplitTiles`."""

    def __init__(self, settings: spec.SplitTiles) -> None:
        super().__init__()
        self._rules = settings.rules

    def parts(self, grid: Grid) -> list[Size]:
        """Of the tiles and the whole image; the grid is (1, height, width) of the image."""
        return self._rules.parts((grid[1], grid[2]))


class TilesFirst(Arrangement):
    """See `spec.TilesFirst`; the grid is (1, rows, columns) of tiles, one tile for none."""

    def __init__(self, settings: spec.TilesFirst) -> None:
        super().__init__()
        self._settings = settings

    def parts(self, grid: Grid) -> list[Size]:
        """Of the tiles row by row, then of the whole image."""
        whole, tile = self._settings.whole, self._settings.tile
        tiles = grid[1] * grid[2] if grid[1] * grid[2] > 1 else 0
        return [*[(tile, tile)] * tiles, (whole, whole)]


class TileRows(Arrangement):
    """See `spec.TileRows`; the grid is (1, rows, columns) of tiles."""

    def __init__(self, settings: spec.TileRows, hidden: int, context: BuildContext) -> None:
        super().__init__()
        self._whole_last = settings.whole_last
        self.newline = Learned((hidden,), settings.newline, context)
        self.separator = Learned((hidden,), settings.separator, context)

    def num_tokens(self, count: int, grid: Grid) -> int:
        """With a vector after every row and one between whole and tiles."""
        _, rows, columns = grid
        side = _side(count, grid)
        return side * (side + 1) + 1 + rows * side * (columns * side + 1)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """[(1 + rows * columns) * side^2, hidden], the whole image first."""
        _, rows, columns = grid
        side = _side(len(x), grid)
        whole, tiles = torch.split(x, [side**2, len(x) - side**2])
        plane = tiles.view(rows, columns, side, side, -1).transpose(1, 2)
        parts = [
            self._ended(whole.view(side, side, -1)),
            self.separator()[None].to(x.dtype),
            self._ended(plane.reshape(rows * side, columns * side, -1)),
        ]
        return torch.cat(parts[::-1] if self._whole_last else parts)

    def _ended(self, plane: Tensor) -> Tensor:
        """[rows, columns, hidden] to [rows * (columns + 1), hidden]."""
        ends = self.newline().to(plane.dtype).expand(len(plane), 1, -1)
        return torch.cat((plane, ends), dim=1).flatten(0, 1)


def _side(count: int, grid: Grid) -> int:
    """Embeddings in a row of a tile."""
    return math.isqrt(count // (1 + grid[1] * grid[2]))
