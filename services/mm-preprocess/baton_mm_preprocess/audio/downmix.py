"""Channels to one, as a listener hears them.

The coefficients are those of Recommendation ITU-R BS.775-3 (annex 4), which leave out the channel
of low-frequency effects: what no loudspeaker of a stereo set plays, no model hears.
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
"""By FFmpeg's name of the channel; the others are surround channels."""
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
"""Channels of a file that does not name them, by their number."""
MAX_CHANNELS = len(_NAMES)


def weights(names: Sequence[str]) -> Samples:
    """The factor of each channel; they add up to 1, so that no sum of samples clips.

    Args:
        names: FFmpeg's names of at most `MAX_CHANNELS` channels, "NONE" for one without a name.
    """
    if "NONE" in names:
        names = _NAMES[len(names) - 1]
    found = np.array([_WEIGHTS.get(name, _SURROUND) for name in names], np.float32)
    total = found.sum()
    return found / total if total else found
