"""Positions of tokens on several axes: text goes on along all of them, an image spans a box.

    text text | image of 2 x 3 cells    | text
    t  0   1  |  2 2 2 2 2 2            | 5
    h  0   1  |  2 2 2 3 3 3            | 5
    w  0   1  |  2 3 4 2 3 4            | 5

Text behind an image begins one after the longest side of it (M-RoPE, Wang et al. 2024,
arXiv:2409.12191). A video is a box too, whose frames are apart by their seconds in Qwen2.5-VL;
where text stands between its frames (Qwen3-VL, GLM-4.1V), each frame is a box of its own. Sounds
are as text.

The time axis is a side like the others. transformers from 5.3 on leaves it out for the prompt's
text and takes it in for what is generated, so that a token that was generated has another position
once it is part of the next prompt, and its cached KV could not be reused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from baton.protocol.media import Grid, is_sound
from baton_worker.engine.batch.plan_columns import Column
from baton_worker.engine.multimodal_input import SequenceMedia

AXES = 3
"""Time, height, width."""


class AxisPositions(NamedTuple):
    """Where the tokens of a sequence with media are."""

    table: Column
    """int64 [axes, n]: positions of the first n tokens, up to the end of the last image."""
    shift: int
    """From the index of a later token to its position, which all axes share."""

    @property
    def length(self) -> int:
        """Number of tokens in the table."""
        return int(self.table.shape[1])

    def of(self, indices: Column) -> Column:
        """Positions of the tokens with these indices, ascending, int64 [n]: int64 [n], or [axes, n]
        where one of them is in the table."""
        within = int(np.searchsorted(indices, self.length))
        later = indices[within:] + self.shift
        if not within:
            return later
        return np.concatenate(
            (self.table[:, indices[:within]], np.tile(later, (len(self.table), 1))), axis=1
        )


def axis_positions(
    media: Sequence[SequenceMedia], tokens_per_second: float = 0.0, *, apart: bool = False
) -> AxisPositions:
    """The positions in a sequence with these media, in order.

    Args:
        tokens_per_second: positions on the time axis per second of a video; 0 for one per frame of
            its grid.
        apart: rows and columns count from 0 in each image, and text behind it begins one after its
            last frame (Isaac).

    Raises:
        ValueError: the tokens of an item are not those of its grid.
    """
    parts, index, position = list[Column](), 0, 0
    for item in media:
        if is_sound(item.grid):  # As text, a token after the other.
            continue
        step = tokens_per_second * item.seconds_per_grid or 1.0
        for run, grid in _runs(item):
            first = int(run[0])
            parts.append(np.tile(np.arange(position, position + first - index), (AXES, 1)))
            position += first - index
            box = np.indices(_cells(grid, len(run))).reshape(AXES, -1)
            box[0] = (box[0] * np.float32(step)).astype(np.int64)
            sides = box[:1] if apart else box
            last = int(sides.max())
            sides += position
            parts.append(box)
            index, position = first + len(run), position + last + 1
    table = np.concatenate(parts, axis=1) if parts else np.zeros((AXES, 0), np.int64)
    return AxisPositions(table, position - index)


def _runs(item: SequenceMedia) -> list[tuple[Column, Grid]]:
    """Tokens of an item that follow one another, and the part of its grid that they show."""
    gaps = np.flatnonzero(np.diff(item.positions) > 1) + 1
    runs = np.split(item.positions, gaps)
    frames, rows, columns = item.grid
    if frames % len(runs):
        raise ValueError(f"{len(runs)} runs of embeddings are no {frames} frames")
    return [(run, (frames // len(runs), rows, columns)) for run in runs]


def _cells(grid: Grid, count: int) -> Grid:
    """Frames, rows and columns of embeddings: square groups of patches share one."""
    frames, rows, columns = grid
    merge = math.isqrt(rows * columns * frames // count)
    cells = (frames, rows // merge, columns // merge) if merge else grid
    if math.prod(cells) != count:
        raise ValueError(f"{count} embeddings are no grid of {list(grid)} patches")
    return cells
