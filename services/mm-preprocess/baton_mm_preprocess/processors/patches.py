"""Flattened patches of images and frames of any size."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def patchify(
    pixels: npt.NDArray[np.float32], patch: int, merge: int = 1, frames: int = 1
) -> npt.NDArray[np.float32]:
    """[3, height, width] to [patches, 3 * frames * patch * patch]: a still image is repeated for
    each of `frames`. The order is that of `patchify_frames`."""
    return patchify_frames(np.broadcast_to(pixels, (frames, *pixels.shape)), patch, merge)


def patchify_frames(
    pixels: npt.NDArray[np.float32], patch: int, merge: int = 1
) -> npt.NDArray[np.float32]:
    """[frames, 3, height, width] to [patches, 3 * frames * patch * patch].

    The patches of a window of `merge` x `merge` follow one another, windows row by row.
    """
    frames, channels, height, width = pixels.shape
    rows, columns = height // patch, width // patch
    cells = pixels.reshape(
        frames, channels, rows // merge, merge, patch, columns // merge, merge, patch
    ).transpose(2, 5, 3, 6, 1, 0, 4, 7)
    return cells.reshape(rows * columns, channels * frames * patch * patch)
