"""Rows of tiles with a learned vector after each: see `spec.Newlines`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from baton.anyres import Size, best_resolution, limited, unpadded, unpadded_range
from baton.protocol.media import Grid
from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.embedding import Learned
from baton_worker.layers.vision.arrangement import Arrangement


def is_video(grid: Grid) -> bool:
    """Whether a grid is that of the frames of a video."""
    return grid[1] == 0


class Newlines(Arrangement):
    """The embeddings of tiles, whole image first, as rows of the image."""

    def __init__(self, settings: spec.Newlines, hidden: int, context: BuildContext) -> None:
        super().__init__()
        self.settings = settings
        self.newline = Learned((hidden,), settings.name, context)

    def grid(self, size: Size) -> Size:
        """Rows and columns of embeddings of the tiles of an image, padding included."""
        tall, wide = best_resolution(size, self.settings.offered)
        tile, patches = self.settings.tile, self.settings.patches
        return tall // tile * patches, wide // tile * patches

    def kept(self, size: Size) -> Size:
        """Rows and columns without padding, and shrunk if there is a limit."""
        return self._limited(unpadded(size, self.grid(size), rounded=self.settings.rounded))

    def num_tokens(self, count: int, grid: Grid) -> int:
        """Embeddings of an image of (1, height, width) pixels, or of a video of (frames, 0, 0)."""
        if is_video(grid):
            return grid[0] * self._half**2 + 1
        rows, columns = self.kept(grid[1:])
        return self.settings.patches**2 + rows * (columns + 1)

    def sample_tiles(self) -> tuple[int, Grid]:
        """See `Arrangement.sample_tiles`: the whole image and the tiles of the largest size."""
        tall, wide = max(self.settings.offered, key=lambda size: size[0] * size[1])
        tile = self.settings.tile
        return 1 + (tall // tile) * (wide // tile), (1, tall, wide)

    @property
    def _half(self) -> int:
        return (self.settings.patches + 1) // 2

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        """[(1 + tiles) * patches^2, hidden] of an image, or [frames * patches^2, hidden] of a
        video, to [num_tokens, hidden]."""
        return self._pooled(x, grid[0]) if is_video(grid) else self._rows(x, grid[1:])

    def _pooled(self, x: Tensor, frames: int) -> Tensor:
        side, half = self.settings.patches, (self._half, self._half)
        planes = x.view(frames, side, side, -1).permute(0, 3, 1, 2)
        small = F.interpolate(planes, half, mode="bilinear").permute(0, 2, 3, 1)
        end = self.newline().to(x.dtype).view(1, -1)
        return torch.cat((small.flatten(0, 2), end))

    def _rows(self, x: Tensor, size: Size) -> Tensor:
        side = self.settings.patches
        grid, (whole, tiles) = self.grid(size), torch.split(x, [side**2, len(x) - side**2])
        rows, columns = grid[0] // side, grid[1] // side
        cells = tiles.view(rows, columns, side, side, -1).transpose(1, 2)
        plane = cells.reshape(*grid, -1)
        first, end, axis = unpadded_range(size, grid, rounded=self.settings.rounded)
        plane = plane.narrow(axis, first, end - first)
        limited = self._limited((plane.shape[0], plane.shape[1]))
        if limited != tuple(plane.shape[:2]):
            image = plane.permute(2, 0, 1)[None]
            plane = F.interpolate(image, limited, mode="bilinear")[0].permute(1, 2, 0)
        ends = self.newline().to(x.dtype).expand(len(plane), 1, -1)
        return torch.cat((whole, torch.cat((plane, ends), dim=1).flatten(0, 1)))

    def _limited(self, grid: Size) -> Size:
        return limited(grid, self.settings.patches, self.settings.most_tiles)
