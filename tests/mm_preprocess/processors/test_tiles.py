"""Tiles and padding."""

from __future__ import annotations

import numpy as np

from baton_mm_preprocess.processors.tiles import cut, padded


def test_tiles_are_cut_row_by_row() -> None:
    pixels = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    tiles = cut(pixels, (2, 3))
    assert [int(tile[0, 0, 0]) for tile in tiles] == [0, 9, 36, 45]
    assert all(tile.shape == (2, 3, 3) for tile in tiles)


def test_an_image_is_in_the_middle_of_its_padding() -> None:
    found = padded(np.ones((1, 2, 3), np.uint8), (4, 2))
    assert found[:, 0, 0].tolist() == [0, 1, 0, 0] and found.shape == (4, 2, 3)
