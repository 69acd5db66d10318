"""Media as they come over the wire, checked against what the model can take."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from baton.protocol import Blob

Pixels = npt.NDArray[np.float32]
"""Of one image: [channels, height, width]."""


def pixels_of(media: Sequence[Blob], shape: tuple[int, ...] | None) -> Pixels | str:
    """The one image of a sequence, of the shape that the model has; else why it cannot be seen.

    `shape` is None for a model that sees nothing.
    """
    if shape is None:
        return "this model takes no media"
    if len(media) != 1:
        return f"one image was expected, not {len(media)}"
    [blob] = media
    if blob.shape != shape or len(blob.data) != 4 * math.prod(shape):
        return f"an image of shape {list(shape)} was expected, not {list(blob.shape)}"
    return np.frombuffer(blob.data, "<f4").reshape(shape)
