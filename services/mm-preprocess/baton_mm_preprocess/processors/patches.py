"""Flattened patches of an image of any size."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def patchify(
    pixels: npt.NDArray[np.float32], patch: int, merge: int = 1, frames: int = 1
) -> npt.NDArray[np.float32]:
    """[3, height, width] to [patches, 3 * frames * patch * patch].

    The patches of a window of `merge` x `merge` follow one another, windows row by row. A still
    image is repeated for each of `frames`.
    """
    channels, height, width = pixels.shape
    rows, columns = height // patch, width // patch
    cells = pixels.reshape(
        channels, rows // merge, merge, patch, columns // merge, merge, patch
    ).transpose(1, 4, 2, 5, 0, 3, 6)
    still = np.broadcast_to(cells[:, :, :, :, :, None], (*cells.shape[:5], frames, patch, patch))
    return still.reshape(rows * columns, channels * frames * patch * patch)
