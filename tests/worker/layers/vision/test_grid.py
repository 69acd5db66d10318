"""Orders of patches."""

from __future__ import annotations

import torch

from baton_worker.layers.vision.grid import coordinates, patchify, windows


def test_patches_of_a_window_follow_one_another() -> None:
    rows, columns = coordinates((4, 4), 2).tolist()
    assert rows[:8] == [0, 0, 1, 1, 0, 0, 1, 1] and columns[:8] == [0, 1, 0, 1, 2, 3, 2, 3]
    assert coordinates((2, 3), 1).tolist() == [[0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2]]


def test_pixels_have_the_order_of_coordinates() -> None:
    pixels = torch.arange(64).view(1, 1, 8, 8).expand(2, 3, 8, 8)
    patches = patchify(pixels, 2, 2)
    assert patches.shape == (2, 16, 12)
    rows, columns = coordinates((4, 4), 2)
    assert torch.equal(patches[0, :, 0], rows * 16 + columns * 2)
    assert patchify(torch.zeros(1, 3, 7, 5), 2, 1).shape == (1, 6, 12), (
        "incomplete ones are dropped"
    )


def test_windows_are_cut_off_at_the_border() -> None:
    order, counts = windows((4, 6), 2, 4)
    assert order.tolist() == [0, 1, 3, 4, 2, 5] and counts == [16, 8]
