"""Flattened patches."""

from __future__ import annotations

import numpy as np

from baton_mm_preprocess.processors.patches import patchify


def test_patches_of_a_window_follow_one_another() -> None:
    rows, columns = np.indices((8, 8))
    pixels = np.stack([rows // 2, columns // 2, rows % 2]).astype(np.float32)
    patches = patchify(pixels, 2, merge=2, frames=2).reshape(16, 3, 2, 2, 2)
    places = [(int(p[0, 0, 0, 0]), int(p[1, 0, 0, 0])) for p in patches]
    assert places[:8] == [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3)]
    assert np.array_equal(patches[:, :, 0], patches[:, :, 1]), "one frame is repeated"
    assert patches[0, 2, 0].tolist() == [[0, 0], [1, 1]]
    assert np.array_equal(patchify(pixels, 2)[1], pixels[:, :2, 2:4].ravel())
