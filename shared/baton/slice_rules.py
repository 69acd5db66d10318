"""Slices of images of any resolution, as in MiniCPM-V (arXiv:2408.01800).

mm-preprocess cuts by these rules, and the worker splits the patches of an image by them, so both
always agree. Sizes are (height, width).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

Size: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class SliceRules:
    """Each part of an image has about `scale` x `scale` pixels, in complete patches of `patch`."""

    scale: int
    most: int
    """Slices of an image."""
    patch: int

    def grid(self, size: Size) -> Size | None:
        """Rows and columns of the slices with the shape closest to a square; None if the image is
        not sliced."""
        height, width = size
        num_slices = min(math.ceil(height * width / self.scale**2), self.most)
        if num_slices <= 1:
            return None
        counts = [n for n in (num_slices - 1, num_slices, num_slices + 1) if 1 < n <= self.most]
        grids = [(n // wide, wide) for n in counts for wide in range(1, n + 1) if n % wide == 0]
        aspect = math.log(width / height)
        return min(grids, key=lambda grid: abs(aspect - math.log(grid[1] / grid[0])))

    def resized(self, size: Size) -> Size:
        """Size of the resized image: enlarged only if it is not sliced."""
        return self._fitted(*size, enlarge=self.grid(size) is None)

    def slice(self, size: Size, grid: Size) -> Size:
        """The size of each slice."""
        tall, wide = (
            _round_to_multiple(side, parts) / parts for side, parts in zip(size, grid, strict=True)
        )
        return self._fitted(tall, wide, enlarge=True)

    def parts(self, size: Size) -> list[Size]:
        """Rows and columns of patches of the resized image, then of its slices."""
        grid = self.grid(size)
        sizes = [self.resized(size)]
        if grid is not None:
            sizes += [self.slice(size, grid)] * (grid[0] * grid[1])
        return [(tall // self.patch, wide // self.patch) for tall, wide in sizes]

    def _fitted(self, height: float, width: float, *, enlarge: bool) -> Size:
        if enlarge or height * width > self.scale**2:
            aspect = width / height
            height = int(self.scale / math.sqrt(aspect))
            width = int(height * aspect)
        return _round_to_multiple(height, self.patch), _round_to_multiple(width, self.patch)


def _round_to_multiple(side: float, unit: int) -> int:
    """The multiple of `unit` nearest to a side, at least one."""
    return max(round(side / unit) * unit, unit)
