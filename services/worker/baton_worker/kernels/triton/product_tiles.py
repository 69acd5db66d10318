"""Tiles of products with packed weights, and of visits to experts: tables, and the choice."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from baton_worker.kernels.triton import has_room
from baton_worker.kernels.triton.row_tiles import FEW, MANY, MOST

COLUMNS = 64
"""Of a tile where there is no reason for more."""
_WIDE_FROM = 256
"""Rows of a product with a packed weight from which on tiles have most rows."""
_WGMMA = 9
"""The major compute capability whose tensor cores multiply for a group of warps, by `wgmma`."""


class Tile(NamedTuple):
    """Size of the tile of a program, and its warps and stages."""

    rows: int
    columns: int
    warps: int = 4
    stages: int = 4
    """Pipeline stages: tiles of words that are loaded ahead."""
    left: bool = False
    """Whether the weight is the left operand. `wgmma` takes that from registers, where codes become
    numbers; the right one it reads from shared memory, to which all warps would first write it."""

    def __str__(self) -> str:
        """As in a list of times."""
        side = "left" if self.left else "right"
        return f"tiles of {self.rows} by {self.columns}, {self.warps} warps, weight {side}"


PACKED: dict[int, tuple[Tile, ...]] = {
    FEW: (Tile(FEW, COLUMNS),),
    MANY: (
        Tile(MANY, COLUMNS, left=True),
        Tile(MANY, 2 * COLUMNS, 8, left=True),
        Tile(MANY, COLUMNS),
    ),
    MOST: (Tile(MOST, 128, 8, left=True), Tile(MOST, 128, 8)),
}
"""By rows the tiles of products with a packed weight. The first is used."""
PACKED_VISITS: dict[int, tuple[Tile, ...]] = {
    FEW: PACKED[FEW],
    MANY: (Tile(MANY, 2 * COLUMNS, left=True), Tile(MANY, 2 * COLUMNS)),
    MOST: (Tile(MOST, 128, 8, 3, left=True), Tile(MOST, 128, 8, 3)),
}
"""The same of blocks of visits."""
_VISITS = {FEW: Tile(FEW, COLUMNS), MANY: Tile(MANY, 2 * COLUMNS), MOST: Tile(MOST, 128, 8, 3)}
"""Of blocks of visits, with weights in floats."""


def of_rows(count: int, x: Tensor, *, packed: bool) -> Tile:
    """The tile of a product of so many rows like x."""
    if not packed:
        return Tile(FEW if count <= FEW else MANY, COLUMNS)
    wide = has_wide(x) and count >= _WIDE_FROM
    rows = FEW if count <= FEW else MOST if wide else MANY
    return fitted(PACKED[rows][0], x)


def of_visits(block: int, x: Tensor, *, packed: bool) -> Tile:
    """The tile of blocks of so many visits with rows like x."""
    tile = PACKED_VISITS[block][0] if packed else _VISITS[block]
    return fitted(tile if has_room_for(tile, x) else tile._replace(columns=COLUMNS), x)


def fitted(tile: Tile, x: Tensor) -> Tile:
    """The tile with the operands in the order that tensor cores of the device are fast with."""
    return tile._replace(left=tile.left and x.dtype.itemsize == 2 and _has_wgmma(x.device))


def has_wide(x: Tensor) -> bool:
    """Whether there is room for tiles of most rows, with inputs like x."""
    return x.dtype.itemsize == 2 and has_room(x.device)


def has_room_for(tile: Tile, x: Tensor) -> bool:
    """Whether there is room for a tile, with inputs like x."""
    return tile.columns <= COLUMNS or has_wide(x)


@functools.cache
def _has_wgmma(device: torch.device) -> bool:
    """Whether they multiply so; the interpreter shows what they compute."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device)[0] == _WGMMA
