"""Channels to one, by Recommendation ITU-R BS.775."""

from __future__ import annotations

import numpy as np
import pytest

from baton_mm_preprocess.audio.downmix import MAX_CHANNELS, weights


def test_the_coefficients() -> None:
    front = 0.5**0.5
    for names, factors in (
        (["FC"], [1]),
        (["FL", "FR"], [1, 1]),
        (["NONE", "NONE"], [1, 1]),
        (["FL", "FR", "FC", "LFE", "BL", "BR"], [front, front, 1, 0, 0.5, 0.5]),
        (["FL", "FR", "FC", "LFE", "SL", "SR"], [front, front, 1, 0, 0.5, 0.5]),
        (["NONE"] * 6, [front, front, 1, 0, 0.5, 0.5]),
        (["FL", "FR", "LFE"], [1, 1, 0]),
    ):
        assert weights(names) == pytest.approx(np.array(factors) / sum(factors)), names
    assert np.array_equal(weights(["LFE"]), [0]), "alone it is silence, not a number that is none"
    for count in range(1, MAX_CHANNELS + 1):
        assert weights(["NONE"] * count).sum() == pytest.approx(1)
