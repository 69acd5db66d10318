"""Rows of tiles, and slices."""

from __future__ import annotations

import torch

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.vision.arrangement import Slices, TileRows

CPU = BuildContext(torch.device("cpu"), torch.float32)


def test_rows_of_tiles_end_with_a_vector_and_a_separator_is_between() -> None:
    x = torch.arange(12.0)[:, None]  # The whole image, then two tiles of 2 x 2.
    for last in (False, True):
        rows = TileRows(spec.TileRows("newline", "separator", last), 1, CPU)
        rows.newline.value.fill_(-1.0)
        rows.separator.value.fill_(-2.0)
        found = rows(x, (1, 1, 2))[:, 0].tolist()
        whole, tiles = [0, 1, -1, 2, 3, -1], [4, 5, 8, 9, -1, 6, 7, 10, 11, -1]
        assert found == ([*tiles, -2, *whole] if last else [*whole, -2, *tiles])
        assert rows.num_tokens(12, (1, 1, 2)) == len(found)


def test_slices_follow_from_the_size_of_an_image() -> None:
    assert Slices(spec.Slices(28, 9, 7)).parts((1, 30, 60)) == [(3, 5), (4, 4), (4, 4)]
