"""What goes to the worker."""

from __future__ import annotations

import numpy as np

from baton_mm_preprocess.audio.processed_audio import ProcessedAudio


def test_a_grid_without_columns_is_a_sound() -> None:
    features = np.zeros((3, 8, 200), np.float32)
    assert ProcessedAudio(features, 450, 100).grid == (3, 450, 0)
