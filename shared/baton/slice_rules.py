"""Slices of images of any resolution, as MiniCPM-V cuts them (arXiv:2408.01800).

mm-preprocess cuts by these rules, and the worker finds the parts in the patches of an image by
them, so the two always agree. Sizes are (height, width).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

Size: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class SliceRules:
    """Each part of an image has about `scale` x `scale` pixels, in whole patches of `patch`."""

    scale: int
    most: int
    """Slices of an image."""
    patch: int

    def grid(self, size: Size) -> Size | None:
        """Rows and columns of the slices whose shape is closest to a square; None if the whole
        image is enough."""
        height, width = size
        wanted = min(math.ceil(height * width / self.scale**2), self.most)
        if wanted <= 1:
            return None
        counts = [n for n in (wanted - 1, wanted, wanted + 1) if 1 < n <= self.most]
        grids = [(n // wide, wide) for n in counts for wide in range(1, n + 1) if n % wide == 0]
        aspect = math.log(width / height)
        return min(grids, key=lambda grid: abs(aspect - math.log(grid[1] / grid[0])))

    def whole(self, size: Size) -> Size:
        """What the whole image is resized to: enlarged only if it is not sliced."""
        return self._fitted(*size, enlarge=self.grid(size) is None)

    def slice(self, size: Size, grid: Size) -> Size:
        """The size of each slice."""
        tall, wide = (_whole(side, parts) / parts for side, parts in zip(size, grid, strict=True))
        return self._fitted(tall, wide, enlarge=True)

    def parts(self, size: Size) -> list[Size]:
        """Rows and columns of patches of the whole image, then of its slices."""
        grid = self.grid(size)
        sizes = [self.whole(size)]
        if grid is not None:
            sizes += [self.slice(size, grid)] * (grid[0] * grid[1])
        return [(tall // self.patch, wide // self.patch) for tall, wide in sizes]

    def _fitted(self, height: float, width: float, *, enlarge: bool) -> Size:
        if enlarge or height * width > self.scale**2:
            aspect = width / height
            height = int(self.scale / math.sqrt(aspect))
            width = int(height * aspect)
        return _whole(height, self.patch), _whole(width, self.patch)


def _whole(side: float, unit: int) -> int:
    """The multiple of `unit` nearest to a side, at least one."""
    return max(round(side / unit) * unit, unit)
