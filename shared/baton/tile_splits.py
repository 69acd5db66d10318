"""Tiles of images in addition to the resized image, as in LFM2-VL (arXiv:2511.23404).

mm-preprocess cuts by these rules, and the worker splits the patches of an image by them, so both
always agree. Sizes are (height, width).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

Size: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class TileSplits:
    """Large images are cut into tiles of `tile` x `tile` pixels, `least` to `most` of them; the
    image itself is resized to `min_tokens` to `max_tokens` embeddings of `merge` x `merge`
    patches."""

    tile: int
    patch: int
    merge: int
    least: int
    most: int
    min_tokens: int
    max_tokens: int
    tolerance: float
    """An image is large if it has more than this many times the pixels of `max_tokens`."""

    def grid(self, size: Size) -> Size | None:
        """Rows and columns of tiles with the closest aspect ratio; of equal ones, more tiles as
        long as the image fills half of them; None if the image is not cut."""
        if self.most == 1 or not self._is_large(size):
            return None
        aspect, area = size[1] / size[0], size[0] * size[1]
        best, nearest = (1, 1), math.inf
        for rows, columns in self._grids():
            difference = abs(aspect - columns / rows)
            fills = area > 0.5 * self.tile**2 * rows * columns
            if difference < nearest or (difference == nearest and fills):
                best, nearest = (rows, columns), difference
        return best

    def resized(self, size: Size) -> Size:
        """Size of the resized image."""
        height, width = size
        unit = self.patch * self.merge
        tall, wide = (max(unit, round(side / unit) * unit) for side in size)
        least, most = (count * unit**2 for count in (self.min_tokens, self.max_tokens))
        if tall * wide > most:
            beta = math.sqrt(height * width / most)
            down = (math.floor(side / beta / unit) * unit for side in size)
            tall, wide = (max(unit, side) for side in down)
        elif tall * wide < least:
            beta = math.sqrt(least / (height * width))
            tall, wide = (math.ceil(side * beta / unit) * unit for side in size)
        return tall, wide

    def parts(self, size: Size) -> list[Size]:
        """Rows and columns of patches of each tile, then of the resized image."""
        rows, columns = self.grid(size) or (0, 0)
        tile = self.tile // self.patch
        tall, wide = self.resized(size)
        return [(tile, tile)] * (rows * columns) + [(tall // self.patch, wide // self.patch)]

    def _is_large(self, size: Size) -> bool:
        unit = self.patch * self.merge
        tall, wide = (max(self.patch, round(side / unit) * unit) for side in size)
        return tall * wide > self.max_tokens * unit**2 * self.tolerance

    def _grids(self) -> list[Size]:
        """Few tiles first."""
        sides = range(1, self.most + 1)
        grids = [(rows, columns) for columns in sides for rows in sides]
        allowed = [grid for grid in grids if self.least <= grid[0] * grid[1] <= self.most]
        return sorted(allowed, key=math.prod)
