"""Learned positions of a square grid for images of any size."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from baton_worker.layers.vision.grid import Size, coordinates, inside

Positions = Callable[[Tensor, Size, int], Tensor]
"""A table [side * side, C], rows and columns of an image and the merge size, to [patches, C]."""


def exact(table: Tensor, size: Size, merge: int) -> Tensor:
    """The image has the size of the grid, or less of it from the top left."""
    rows, columns = coordinates(size, merge).to(table.device)
    return F.embedding(rows * _side(table) + columns, table)


def buckets(table: Tensor, size: Size, merge: int) -> Tensor:
    """The position at the same share of a side (NaViT, arXiv:2307.06304; Idefics2)."""
    return buckets_within(table, size, size, merge)


def buckets_within(table: Tensor, size: Size, unpadded: Size, merge: int) -> Tensor:
    """As `buckets`, of an image whose patches are the first rows and columns of these; the others
    have the first position."""
    side = _side(table)
    bounds = torch.arange(1 / side, 1.0, 1 / side)
    rows, columns = (
        torch.bucketize((axis * (1.0 / count)).clamp(max=1 - 1e-6), bounds, right=True)
        for axis, count in zip(coordinates(size, merge).float(), unpadded, strict=True)
    )
    numbers = torch.where(inside(size, unpadded, merge), rows * side + columns, 0)
    return F.embedding(numbers.to(table.device), table)


def interpolation(mode: str, *, corners: bool, antialias: bool = False) -> Positions:
    """Resized as an image. With `corners` the outermost positions keep their places."""

    def positions(table: Tensor, size: Size, merge: int) -> Tensor:
        side = _side(table)
        if size == (side, side):
            return exact(table, size, merge)
        grid = table.float().view(1, side, side, -1).permute(0, 3, 1, 2)
        resized = F.interpolate(grid, size, mode=mode, align_corners=corners, antialias=antialias)
        rows, columns = coordinates(size, merge).to(table.device)
        return resized[0, :, rows, columns].T.to(table.dtype)

    return positions


def square(table: Tensor, size: Size, merge: int) -> Tensor:
    """The top left of the grid resized to a square of the longer side (RADIO, arXiv:2312.06709)."""
    longer = max(size)
    whole = KINDS["bilinear"](table, (longer, longer), 1)
    rows, columns = coordinates(size, merge).to(table.device)
    return F.embedding(rows * longer + columns, whole)


def sampled(table: Tensor, size: Size, merge: int) -> Tensor:
    """Bicubic at the middle of each patch (GLM-4.1V, arXiv:2507.01006)."""
    side = _side(table)
    grid = table.float().view(1, side, side, -1).permute(0, 3, 1, 2)
    rows, columns = coordinates(size, merge).to(table.device).float()
    places = torch.stack((_centered(columns, size[1]), _centered(rows, size[0])), dim=-1)
    values = F.grid_sample(
        grid, places[None, :, None], mode="bicubic", padding_mode="border", align_corners=False
    )
    return values[0, :, :, 0].T.to(table.dtype)


def axes(table: Tensor, size: Size, merge: int) -> Tensor:
    """The sum of the positions of a column and of a row, which are the two halves of the table
    (Gemma 4)."""
    of_columns, of_rows = table.chunk(2)
    rows, columns = coordinates(size, merge).to(table.device)
    return F.embedding(columns, of_columns) + F.embedding(rows, of_rows)


def _centered(axis: Tensor, count: int) -> Tensor:
    """Middles of cells, from -1 to 1."""
    return (axis + 0.5) / count * 2 - 1


def _side(table: Tensor) -> int:
    return math.isqrt(len(table))


KINDS: dict[str, Positions] = {
    "exact": exact,
    "axes": axes,
    "buckets": buckets,
    "sampled": sampled,
    "square": square,
    "bilinear": interpolation("bilinear", corners=False),
    "bilinear_corners": interpolation("bilinear", corners=True),
    "bilinear_antialias": interpolation("bilinear", corners=False, antialias=True),
    "bicubic": interpolation("bicubic", corners=False),
    "bicubic_antialias": interpolation("bicubic", corners=False, antialias=True),
}
"""By `spec.Patches.positions`."""
