"""Mixes channels to one.

The coefficients are those of Recommendation ITU-R BS.775-3 (annex 4), which omits the low-frequency
effects channel, as stereo playback does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Samples = npt.NDArray[np.float32]

_FRONT = 0.5**0.5
_WEIGHTS = {
    "FC": 1.0,
    "LFE": 0.0,
    "LFE2": 0.0,
    **dict.fromkeys(("FL", "FR", "FLC", "FRC", "BC", "DL", "DR", "WL", "WR"), _FRONT),
}
"""Weight by FFmpeg's channel name; other channels are surround channels."""
_SURROUND = 0.5
_NAMES = (
    ("FC",),
    ("FL", "FR"),
    ("FL", "FR", "FC"),
    ("FL", "FR", "BL", "BR"),
    ("FL", "FR", "FC", "BL", "BR"),
    ("FL", "FR", "FC", "LFE", "BL", "BR"),
    ("FL", "FR", "FC", "LFE", "BC", "SL", "SR"),
    ("FL", "FR", "FC", "LFE", "BL", "BR", "SL", "SR"),
)
"""Channel names of a file without them, by number of channels."""
MAX_CHANNELS = len(_NAMES)


def weights(names: Sequence[str]) -> Samples:
    """The weight of each channel; the sum is 1, so the result cannot clip.

    Args:
        names: FFmpeg's names of at most `MAX_CHANNELS` channels, "NONE" for one without a name.
    """
    if "NONE" in names:
        names = _NAMES[len(names) - 1]
    weights = np.array([_WEIGHTS.get(name, _SURROUND) for name in names], np.float32)
    total = weights.sum()
    return weights / total if total else weights
