"""Tiles, then the whole image, then a separator."""

from __future__ import annotations

import torch

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.vision.view_tiles import ViewTiles

CPU = BuildContext(torch.device("cpu"), torch.float32)


def test_tiles_are_first_and_rows_end_with_a_vector_where_there_is_one() -> None:
    x = torch.arange(4.0 + 2)[:, None]
    for newline, wanted in (
        ("n", [4, 5, -1, 0, 1, -1, 2, 3, -1, -2]),
        ("", [4, 5, 0, 1, 2, 3, -2]),
    ):
        tiles = ViewTiles(spec.ViewTiles(8, 4, "s", newline), 1, CPU)
        tiles.separator.value.fill_(-2)
        if tiles.newline is not None:
            tiles.newline.value.fill_(-1)
        assert tiles.parts((1, 1, 2)) == [(8, 8), (4, 4), (4, 4)]
        assert tiles(x, (1, 1, 2))[:, 0].tolist() == wanted
        assert tiles.num_tokens(6, (1, 1, 2)) == len(wanted)
        assert tiles.parts((1, 1, 1)) == [(8, 8)]
        assert tiles(x[:4], (1, 1, 1))[-1].item() == -2
        assert tiles.num_tokens(4, (1, 1, 1)) == len(tiles(x[:4], (1, 1, 1)))
