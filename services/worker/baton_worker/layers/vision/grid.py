"""Where patches lie: the order of windows, and their rows and columns.

Patches that are merged follow one another: windows of `merge` x `merge` row by row, and the patches
of a window row by row.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

Size = tuple[int, int]
"""Rows and columns of patches."""


@lru_cache(maxsize=256)
def coordinates(size: Size, merge: int) -> Tensor:
    """int64 [2, rows * columns]: the row and the column of each patch."""
    rows, columns = size
    grid = torch.stack(torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij"))
    cells = grid.view(2, rows // merge, merge, columns // merge, merge)
    return cells.transpose(2, 3).flatten(1)


def inside(size: Size, unpadded: Size, merge: int) -> Tensor:
    """bool [rows * columns]: whether each patch is in the first rows and columns of these."""
    rows, columns = coordinates(size, merge)
    return torch.logical_and(rows < unpadded[0], columns < unpadded[1])


def patchify(pixels: Tensor, patch: int, merge: int) -> Tensor:
    """[R, C, height, width] to [R, patches, C * patch * patch]; what is no whole patch at the right
    or the bottom is dropped."""
    rows, columns = pixels.shape[2] // patch, pixels.shape[3] // patch
    whole = pixels[:, :, : rows * patch, : columns * patch]
    cells = whole.reshape(
        *whole.shape[:2], rows // merge, merge, patch, columns // merge, merge, patch
    )
    return cells.permute(0, 2, 5, 3, 6, 1, 4, 7).flatten(5).flatten(1, 4)


def windows(size: Size, merge: int, window: int) -> tuple[Tensor, list[int]]:
    """The windows of `window` x `window` patches of one image.

    Returns:
        int64 [merged patches]: their order, window by window; and the patches of each window.
    """
    rows, columns, side = size[0] // merge, size[1] // merge, window // merge
    numbers = torch.arange(rows * columns).view(rows, columns)
    cells = [
        numbers[top : top + side, left : left + side].flatten()
        for top in range(0, rows, side)
        for left in range(0, columns, side)
    ]
    return torch.cat(cells), [len(cell) * merge**2 for cell in cells]
