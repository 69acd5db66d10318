"""Positions of tokens where those of an image count within it (XD-RoPE, HunyuanOCR,
arXiv:2511.19575).

    text text | image of 2 x 2 cells, each row with its end, between two ends | text
    p  0   1  |  2    3 4 5  6 7 8    9                                       | 10
    w  0   1  |  2    0 1 2  0 1 2    9                                       | 10
    h  0   1  |  2    0 0 0  1 1 1    9                                       | 10
    n  0   1  |  2    0 0 0  0 0 0    9                                       | 10

The last axis counts the images of a sequence. Text advances on all axes as if images were text, and
a model with three axes has no first one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from baton_worker.engine.batch.plan_columns import Column
from baton_worker.engine.multimodal.mrope import AxisPositions
from baton_worker.engine.multimodal_input import SequenceMedia

OWN = 3
"""Axes of an image: width, height, number of the image."""


def grid_positions(media: Sequence[SequenceMedia], axes: int, merge: int) -> AxisPositions:
    """The positions in a sequence with these media, in order.

    Args:
        axes: at least `OWN`.
        merge: patches along the side of a cell.

    Raises:
        ValueError: the tokens of an item are not those of its grid.
    """
    length = int(media[-1].positions[-1]) + 1
    table = np.tile(np.arange(length), (axes, 1))
    for number, item in enumerate(media):
        inner = item.positions[1:-1]
        table[axes - OWN :, inner] = _box(item, merge, len(inner), number)
    return AxisPositions(table, 0)


def _box(item: SequenceMedia, merge: int, count: int, number: int) -> Column:
    """int64 [OWN, count]: column, row and number of the image."""
    _, rows, columns = item.grid
    row, column = np.indices((rows // merge, columns // merge + 1)).reshape(2, -1)
    if len(row) != count:
        raise ValueError(f"{count + 2} embeddings are no grid of {list(item.grid)} patches")
    return np.stack((column, row, np.full_like(row, number)))
