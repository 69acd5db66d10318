"""Sizes that images get."""

from __future__ import annotations

from baton_mm_preprocess.processors.sizes import (
    at_least,
    at_most,
    canvas_grid,
    fitted,
    floored_inside,
    inside,
    least_upscaled_grid,
    longest_edge,
    smart,
    tile_grid,
    tile_grids,
    whole_tiles,
)

ROWS = [
    (smart((100, 200), 28, 3136, 1_003_520), (112, 196)),
    (smart((10, 2000), 28, 784, 100_000), (28, 420)),
    (smart((10, 10), 28, 3136, 1_003_520), (56, 56)),
    (smart((4000, 3000), 28, 3136, 1_003_520), (1148, 840)),
    (at_least((10, 40), 28), (28, 112)),
    (at_least((30, 40), 28), (30, 40)),
    (fitted((100, 50), 64, 16), (64, 32)),
    (fitted((33, 17), 64, 16), (48, 32)),
    (inside((100, 50), (60, 60)), (60, 30)),
    (inside((50, 100), (60, 60)), (30, 60)),
    (longest_edge((100, 50), 30), (30, 16)),
    (longest_edge((50, 101), 30), (14, 30)),
    (at_most((100, 50), 30), (30, 15)),
    (at_most((20, 10), 30), (20, 10)),
    (at_most((1, 1000), 30), (1, 30)),
    (whole_tiles((10, 31), 30), (30, 60)),
    (whole_tiles((31, 10), 30), (60, 30)),
    (tile_grid((100, 200), (30, 30), 1, 4), (1, 2)),
    (tile_grid((100, 100), (30, 30), 1, 4), (2, 2)),
    (tile_grid((20, 20), (30, 30), 1, 4), (1, 1)),
    (least_upscaled_grid((30, 50), (30, 30), 4), (1, 2)),
    # The examples of transformers' Llama4ImageProcessor.
    (floored_inside((200, 300), (450, 200)), (133, 200)),
    (floored_inside((800, 600), (450, 1300)), (450, 337)),
    (canvas_grid((200, 300), 224, 3), (1, 2)),
    (canvas_grid((100, 100), 224, 16), (1, 1)),
    (canvas_grid((900, 900), 224, 16), (4, 4)),
    (canvas_grid((100, 900), 224, 4), (1, 4)),
    (least_upscaled_grid((20, 20), (30, 30), 4), (1, 1)),
    (least_upscaled_grid((500, 100), (30, 30), 4), (4, 1)),
]
"""Sizes that are found, and those that are right."""


def test_sizes() -> None:
    for number, (found, expected) in enumerate(ROWS):
        assert found == expected, number


def test_grids_of_tiles_begin_with_few() -> None:
    assert tile_grids(1, 2) == ((1, 1), (1, 2), (2, 1))
    assert all(2 <= columns * rows <= 3 for columns, rows in tile_grids(2, 3))
