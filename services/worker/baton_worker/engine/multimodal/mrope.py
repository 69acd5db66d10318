"""Positions of tokens on several axes: text goes on along all of them, an image spans a box.

    text text | image of 2 x 3 cells    | text
    t  0   1  |  2 2 2 2 2 2            | 5
    h  0   1  |  2 2 2 3 3 3            | 5
    w  0   1  |  2 3 4 2 3 4            | 5

Text behind an image begins one after the longest side of it (M-RoPE, Wang et al. 2024,
arXiv:2409.12191).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from baton.protocol.media import Grid
from baton_worker.engine.batch.plan_columns import Column
from baton_worker.engine.multimodal_input import SequenceMedia

AXES = 3
"""Time, height, width."""


class AxisPositions(NamedTuple):
    """Where the tokens of a sequence with media are."""

    table: Column
    """int64 [AXES, n]: positions of the first n tokens, up to the end of the last image."""
    shift: int
    """From the index of a later token to its position, which all axes share."""

    @property
    def length(self) -> int:
        """Number of tokens in the table."""
        return int(self.table.shape[1])

    def of(self, indices: Column) -> Column:
        """Positions of the tokens with these indices, ascending, int64 [n]: int64 [n], or [AXES, n]
        where one of them is in the table."""
        within = int(np.searchsorted(indices, self.length))
        later = indices[within:] + self.shift
        if not within:
            return later
        return np.concatenate((self.table[:, indices[:within]], np.tile(later, (AXES, 1))), axis=1)


def axis_positions(media: Sequence[SequenceMedia]) -> AxisPositions:
    """The positions in a sequence with these media, in order.

    Raises:
        ValueError: the tokens of an item are not those of its grid.
    """
    parts, index, position = list[Column](), 0, 0
    for item in media:
        first, count = int(item.positions[0]), len(item.positions)
        parts.append(np.tile(np.arange(position, position + first - index), (AXES, 1)))
        position += first - index
        cells = _cells(item.grid, count)
        parts.append(position + np.indices(cells).reshape(AXES, -1))
        index, position = first + count, position + max(cells)
    return AxisPositions(np.concatenate(parts, axis=1), position - index)


def _cells(grid: Grid, count: int) -> Grid:
    """Frames, rows and columns of embeddings: square groups of patches share one."""
    frames, rows, columns = grid
    merge = math.isqrt(rows * columns * frames // count)
    cells = (frames, rows // merge, columns // merge) if merge else grid
    if math.prod(cells) != count:
        raise ValueError(f"{count} embeddings are no grid of {list(grid)} patches")
    return cells
