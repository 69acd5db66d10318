"""Rows of tiles with a learned vector after each: see `spec.Newlines`."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.embedding import Learned

Size = tuple[int, int]
"""Height and width."""


class Newlines(nn.Module):
    """The embeddings of tiles, whole image first, as rows of the image."""

    def __init__(self, settings: spec.Newlines, hidden: int, site: BuildContext) -> None:
        super().__init__()
        self.settings = settings
        self.newline = Learned((hidden,), settings.name, site)

    def grid(self, size: Size) -> Size:
        """Rows and columns of embeddings of the tiles of an image, padding included."""
        tall, wide = best_resolution(size, self.settings.offered)
        tile, patches = self.settings.tile, self.settings.patches
        return tall // tile * patches, wide // tile * patches

    def kept(self, size: Size) -> Size:
        """Rows and columns without padding, and shrunk if there is a limit."""
        first, last, axis = padding(size, self.grid(size))
        rows, columns = self.grid(size)
        kept = (last - first, columns) if axis == 0 else (rows, last - first)
        return shrunk(kept, self.settings)

    def num_tokens(self, size: Size) -> int:
        """Embeddings of an image of so many pixels."""
        rows, columns = self.kept(size)
        return self.settings.patches**2 + rows * (columns + 1)

    def forward(self, x: Tensor, size: Size) -> Tensor:
        """[(1 + tiles) * patches^2, hidden] of an image of this many pixels to [num_tokens,
        hidden]."""
        side = self.settings.patches
        grid, (whole, tiles) = self.grid(size), torch.split(x, [side**2, len(x) - side**2])
        rows, columns = grid[0] // side, grid[1] // side
        cells = tiles.view(rows, columns, side, side, -1).transpose(1, 2)
        plane = cells.reshape(*grid, -1)
        first, last, axis = padding(size, grid)
        plane = plane.narrow(axis, first, last - first)
        kept = shrunk((plane.shape[0], plane.shape[1]), self.settings)
        if kept != tuple(plane.shape[:2]):
            image = plane.permute(2, 0, 1)[None]
            plane = F.interpolate(image, kept, mode="bilinear")[0].permute(1, 2, 0)
        ends = self.newline().to(x.dtype).expand(len(plane), 1, -1)
        return torch.cat((whole, torch.cat((plane, ends), dim=1).flatten(0, 1)))


def best_resolution(size: Size, offered: tuple[Size, ...]) -> Size:
    """The resolution that keeps most of an image, and of these the smallest."""

    def worth(frame: Size) -> tuple[int, int]:
        scale = min(frame[1] / size[1], frame[0] / size[0])
        kept = int(size[1] * scale) * int(size[0] * scale)
        kept = min(kept, size[0] * size[1])
        return kept, kept - frame[0] * frame[1]

    return max(offered, key=worth)


def padding(size: Size, grid: Size) -> tuple[int, int, int]:
    """What of a grid is the image: first and last + 1 along an axis."""
    (height, width), (rows, columns) = size, grid
    if width / height > columns / rows:
        edge = (rows - int(round(height * (columns / width), 7))) // 2
        return edge, rows - edge, 0
    edge = (columns - int(round(width * (rows / height), 7))) // 2
    return edge, columns - edge, 1


def shrunk(grid: Size, settings: spec.Newlines) -> Size:
    """The grid, smaller if it is more than so many tiles."""
    if not settings.most_tiles:
        return grid
    ratio = math.sqrt(grid[0] * grid[1] / (settings.most_tiles * settings.patches**2))
    return grid if ratio <= 1.1 else (int(grid[0] // ratio), int(grid[1] // ratio))
