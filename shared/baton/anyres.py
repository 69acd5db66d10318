"""Tiles of images of any resolution, as in LLaVA-NeXT ("AnyRes").

mm-preprocess counts the placeholder tokens of an image by these rules, and the worker arranges its
embeddings by them, so both always agree. Sizes are (height, width).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TypeAlias

Size: TypeAlias = tuple[int, int]
_TOLERATED = 1.1
"""Ratio of a side to its limit up to which a grid is not reduced."""


def best_resolution(size: Size, offered: Iterable[Size]) -> Size:
    """The supported resolution that preserves most pixels of an image; of several, the smallest."""

    def worth(frame: Size) -> tuple[int, int]:
        scale = min(frame[1] / size[1], frame[0] / size[0])
        effective = int(size[1] * scale) * int(size[0] * scale)
        effective = min(effective, size[0] * size[1])
        return effective, effective - frame[0] * frame[1]

    return max(offered, key=worth)


def unpadded_range(size: Size, grid: Size, *, rounded: bool = True) -> tuple[int, int, int]:
    """(first, end, axis): the rows (axis 0) or columns (axis 1) of a padded grid of embeddings that
    show the image. Without `rounded`, an integer product that floating point computes slightly too
    small is rounded down by one, as in the code of HyperCLOVA X."""
    (height, width), (rows, columns) = size, grid
    if width / height > columns / rows:
        edge = (rows - _floor(height * (columns / width), rounded)) // 2
        return edge, rows - edge, 0
    edge = (columns - _floor(width * (rows / height), rounded)) // 2
    return edge, columns - edge, 1


def _floor(value: float, rounded: bool) -> int:
    return int(round(value, 7) if rounded else value)


def unpadded(size: Size, grid: Size, *, rounded: bool = True) -> Size:
    """Rows and columns of a padded grid of embeddings that show the image; `rounded` as in
    `unpadded_range`."""
    first, end, axis = unpadded_range(size, grid, rounded=rounded)
    return (end - first, grid[1]) if axis == 0 else (grid[0], end - first)


def limited(grid: Size, patches: int, most_tiles: int) -> Size:
    """The grid, reduced to about `most_tiles` tiles of `patches` x `patches`; 0 for no limit."""
    if not most_tiles:
        return grid
    ratio = math.sqrt(grid[0] * grid[1] / (most_tiles * patches**2))
    return grid if ratio <= _TOLERATED else (int(grid[0] // ratio), int(grid[1] // ratio))
