"""Cuts an image into tiles, and pads it to complete ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from baton_mm_preprocess.processors.colors import Colors
from baton_mm_preprocess.processors.sizes import Size

Pixels = npt.NDArray[np.uint8]
"""[height, width, 3]."""


def cut(pixels: Pixels, tile: Size) -> list[Pixels]:
    """Tiles of this size, row by row."""
    (height, width), (tall, wide) = pixels.shape[:2], tile
    return [
        pixels[top : top + tall, left : left + wide]
        for top in range(0, height, tall)
        for left in range(0, width, wide)
    ]


def padded(pixels: Pixels, size: Size, background: tuple[int, int, int] = (0, 0, 0)) -> Pixels:
    """Center pixels in an image of this size and color."""
    top, left = ((whole - have) // 2 for whole, have in zip(size, pixels.shape[:2], strict=True))
    frame = np.empty((*size, 3), np.uint8)
    frame[:] = background
    frame[top : top + pixels.shape[0], left : left + pixels.shape[1]] = pixels
    return frame


def colored(tiles: Sequence[Pixels], colors: Colors) -> npt.NDArray[np.float32]:
    """float32 [tiles, 3, height, width]."""
    return np.stack([colors(tile) for tile in tiles])
