"""Clips as frames of one size."""

from __future__ import annotations

import pytest

from baton.errors import InvalidRequest
from baton_mm_preprocess.image.processor import Processor
from baton_mm_preprocess.video.clip_tiles import ClipTiles
from baton_mm_preprocess.video.decode import VideoLimits, probe
from baton_mm_preprocess.video.sampling import Sampling
from tests.support.video_clips import encoded, moving


def test_tiles_and_their_tokens() -> None:
    clip = probe(encoded(moving(4, 48, 64)), VideoLimits(10**5, 10, 10.0))
    steps = Processor(size=(20, 30))
    found = ClipTiles(Sampling("uniform", num_frames=3), steps, 5, tokens_per_clip=1)(clip)
    assert found.pixels.shape == (3, 3, 20, 30)
    assert (found.grid, found.num_tokens) == ((3, 0, 0), 16)
    large = ClipTiles(Sampling("uniform"), Processor(size=(2000, 2000)), 5)
    with pytest.raises(InvalidRequest, match="4 frames of 2000 x 2000"):
        large(clip)
