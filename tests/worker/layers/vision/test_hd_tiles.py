"""Tiles without their padding, then the whole image."""

from __future__ import annotations

import torch

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.vision.hd_tiles import HdTiles

CPU = BuildContext(torch.device("cpu"), torch.float32)


def test_rows_end_with_a_vector_and_padding_is_left_out() -> None:
    tiles, grid = HdTiles(spec.HdTiles("n", "s", 4), 1, CPU), (1, 3, 5)
    tiles.newline.value.fill_(-1)
    tiles.separator.value.fill_(-2)
    assert tiles.unpadded(grid) == [(4, 4), (3, 4), (3, 1)]
    found = tiles(torch.arange(12.0)[:, None], grid)[:, 0].tolist()
    assert found == [4, 5, 8, -1, 6, 7, 10, -1, -2, 0, 1, -1, 2, 3, -1]
    assert tiles.num_tokens(12, grid) == len(found)
