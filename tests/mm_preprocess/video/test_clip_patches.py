"""Clips as patches."""

from __future__ import annotations

import numpy as np

from baton_mm_preprocess.processors.colors import Colors
from baton_mm_preprocess.video.clip_patches import ClipPatches
from baton_mm_preprocess.video.decode import VideoLimits, probe
from baton_mm_preprocess.video.sampling import Sampling
from tests.support.video_clips import decoded, encoded, moving


def test_the_last_frame_fills_the_last_group() -> None:
    data = encoded(moving(3, 16, 24), codec="ffv1", form="matroska")
    made = ClipPatches(Sampling("uniform", group=2), Colors(), 3, 64, 10**6, patch=4)
    found = made(probe(data, VideoLimits(10**5, 10, 10.0)))
    assert found.grid == (2, 4, 6) and found.num_tokens == 12
    assert found.pixels.shape == (48, 3 * 2 * 4 * 4)
    frames, first = decoded(data).transpose(0, 3, 1, 2), found.pixels.reshape(48, 3, 2, 4, 4)
    assert np.array_equal(first[0], frames[:2, :, :4, :4].transpose(1, 0, 2, 3))
    assert np.array_equal(first[24, :, 0], first[24, :, 1]), "the third frame, twice"
    assert np.array_equal(first[25, :, 0], frames[2, :, :4, 4:8])
