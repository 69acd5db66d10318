"""Positions of a grid for images of other sizes."""

from __future__ import annotations

import torch

from baton_worker.layers.vision.grid_positions import KINDS

TABLE = torch.arange(16.0)[:, None].expand(16, 3)


def test_an_image_of_the_size_of_the_grid_gets_the_table() -> None:
    for name in KINDS.keys() - {"axes"}:
        place = KINDS[name]
        assert torch.allclose(place(TABLE, (4, 4), 1), TABLE, atol=1e-5), name
        windows = place(TABLE, (4, 4), 2)[:4, 0].round().tolist()
        assert windows == [0, 1, 4, 5], name


def test_other_sizes() -> None:
    assert KINDS["exact"](TABLE, (2, 3), 1)[:, 0].tolist() == [0, 1, 2, 4, 5, 6]
    assert KINDS["buckets"](TABLE, (2, 2), 1)[:, 0].tolist() == [0, 2, 8, 10]
    assert KINDS["axes"](TABLE, (2, 3), 1)[:, 0].tolist() == [8, 9, 10, 9, 10, 11], "8 of each"
    corners = KINDS["bilinear_corners"](TABLE, (2, 2), 1)[:, 0]
    assert corners.tolist() == [0, 3, 12, 15]
    middles = KINDS["bilinear"](TABLE, (2, 2), 1)[:, 0]
    assert middles.tolist() == [2.5, 4.5, 10.5, 12.5]
    for name in ("bicubic", "sampled", "bilinear_antialias"):
        found = KINDS[name](TABLE, (2, 3), 1)
        assert found.shape == (6, 3) and bool((found.diff(dim=0)[0] > 0).all()), name
