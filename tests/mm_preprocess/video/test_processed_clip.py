"""Times of frames, and the limit of what travels."""

from __future__ import annotations

import pytest

from baton.errors import InvalidRequest
from baton_mm_preprocess.video.processed_clip import check_bytes, times_of


def test_times() -> None:
    times = times_of([0, 4, 8, 12], total=16, fps=8.0, group=2)
    assert times.frames == (0.0, 0.5, 1.0, 1.5) and times.duration == 2.0
    assert times.seconds_per_grid == 1.0, "two frames a second, two of them in one"


def test_what_fits_in_a_message() -> None:
    check_bytes(18, (512, 512))
    with pytest.raises(InvalidRequest, match="19 frames of 512 x 512 pixels") as caught:
        check_bytes(19, (512, 512))
    assert caught.value.code == "video_too_large"
