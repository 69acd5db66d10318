"""Positions of tokens on several axes: text advances on all of them, an image spans a box.

    text text | image of 2 x 3 cells    | text
    t  0   1  |  2 2 2 2 2 2            | 5
    h  0   1  |  2 2 2 3 3 3            | 5
    w  0   1  |  2 3 4 2 3 4            | 5

Text behind an image begins one after the longest side of it (M-RoPE, Wang et al. 2024,
arXiv:2409.12191). A video is a box too, whose frames are apart by their seconds in Qwen2.5-VL;
where text stands between its frames (Qwen3-VL, GLM-4.1V), each frame is a box of its own. Sounds
are as text. The sound of a video begins where the video does, among whose tokens its own stand
(TMRoPE, Qwen2.5-Omni, arXiv:2503.20215); text behind both goes on from the last of them.

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
    """Positions of the tokens of a sequence with media."""

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
    media: Sequence[SequenceMedia],
    tokens_per_second: float = 0.0,
    *,
    separate: bool = False,
    shared_marks: bool = False,
) -> AxisPositions:
    """The positions in a sequence with these media, in order.

    Args:
        tokens_per_second: positions on the time axis per second of a video; 0 for one per frame of
            its grid.
        separate: rows and columns count from 0 in each image, and text behind it begins one after
            its last frame (Isaac).
        shared_marks: the token before a video with its sound has the position of the one before it,
            and the token behind both that of the one behind it (Qwen2.5-Omni).

    Raises:
        ValueError: the tokens of an item are not those of its grid.
    """
    table = _Table()
    for item, sound in zip(media, [*media[1:], None], strict=True):
        if is_sound(item.grid):  # As text, a token after the other, or placed with its video.
            continue
        step = tokens_per_second * item.seconds_per_grid or 1.0
        if sound is not None and sound.within:
            table.add_video_sound(item, sound, step, shared_marks=shared_marks)
            continue
        for run, grid in _runs(item):
            table.add_text(int(run[0]))
            box = _box(grid, len(run), step)
            sides = box[:1] if separate else box
            last = int(sides.max())
            sides += table.position
            table.add(box, table.position + last + 1)
    return table.positions


class _Table:
    """Positions of a sequence from its first token on, built item by item."""

    def __init__(self) -> None:
        self._parts: list[Column] = [np.zeros((AXES, 0), np.int64)]
        self._length = self.position = 0
        """Tokens so far, and position of the next one."""

    @property
    def positions(self) -> AxisPositions:
        return AxisPositions(np.concatenate(self._parts, axis=1), self.position - self._length)

    def add(self, part: Column, position: int) -> None:
        """Positions [axes, n] of the next tokens, and `position` of the one behind them."""
        self._parts.append(part)
        self._length, self.position = self._length + part.shape[1], position

    def add_text(self, end: int) -> None:
        """All tokens before that at index `end`."""
        count = end - self._length
        text = np.arange(self.position, self.position + count)
        self.add(np.tile(text, (AXES, 1)), self.position + count)

    def add_video_sound(
        self, item: SequenceMedia, sound: SequenceMedia, step: float, *, shared_marks: bool
    ) -> None:
        """A video and its sound, whose tokens are the same tokens but for the marks around them."""
        indices = np.concatenate((item.positions, sound.positions))
        box = _box(item.grid, len(item.positions), step)
        heard = np.tile(np.arange(len(sound.positions)), (AXES, 1))
        order, first = np.argsort(indices), int(indices.min())
        if not np.array_equal(indices[order], np.arange(first, first + len(indices))):
            raise ValueError("the tokens of a video and of its sound have others among them")
        self.add_text(first - shared_marks)
        if shared_marks:
            self.add(np.full((AXES, 1), max(0, self.position - 1)), self.position)
        both = np.concatenate((box, heard), axis=1)[:, order] + self.position
        end = int(both[:, -1].max()) + 1
        self.add(both, end)
        if shared_marks:
            self.add(np.full((AXES, 1), end), end)


def _box(grid: Grid, count: int, step: float) -> Column:
    """Positions [axes, count] of the cells of a grid, frames `step` apart."""
    box = np.indices(_cells(grid, count)).reshape(AXES, -1)
    box[0] = (box[0] * np.float32(step)).astype(np.int64)
    return box


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
