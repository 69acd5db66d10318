"""Parts of an image, each in the middle of a square (Ovis, arXiv:2405.20797)."""

from __future__ import annotations

from itertools import accumulate, pairwise

import msgspec
import numpy as np
import numpy.typing as npt
from PIL import Image

from baton_mm_preprocess.processors.colors import Colors
from baton_mm_preprocess.processors.processed_image import ProcessedImage
from baton_mm_preprocess.processors.sizes import (
    Size,
    covering_parts,
    parts_of,
    pixels_of,
    resized,
    size_of,
)


class FramedParts(msgspec.Struct, frozen=True, tag=True):
    """Pixels [tiles, 3, side, side], with the resized image first if there are several; around a
    part they are zero. The grid counts tiles without the resized image."""

    colors: Colors
    side: int
    resample: int
    tokens_per_tile: int
    most: int = 9

    def __call__(self, image: Image.Image) -> ProcessedImage:
        """Process an image in RGB."""
        height, width = size_of(image)
        rows, columns = covering_parts((height, width), self.side, self.most)
        boxes = [
            (left, top, right, bottom)
            for top, bottom in _ends(height, rows)
            for left, right in _ends(width, columns)
        ]
        boxes_of_image = [(0, 0, width, height)] if len(boxes) > 1 else []
        pixels = np.stack([self._framed(image.crop(box)) for box in [*boxes_of_image, *boxes]])
        return ProcessedImage(pixels, (1, rows, columns), len(pixels) * self.tokens_per_tile)

    def _framed(self, part: Image.Image) -> npt.NDArray[np.float32]:
        size = _longest(size_of(part), self.side)
        top, left = ((self.side - side) // 2 for side in size)
        frame = np.zeros((3, self.side, self.side), np.float32)
        shown = self.colors(pixels_of(resized(part, size, self.resample)))
        frame[:, top : top + size[0], left : left + size[1]] = shown
        return frame


def _ends(side: int, count: int) -> list[tuple[int, int]]:
    """First and last pixel of each part of a side."""
    ends = [0, *accumulate(parts_of(side, count))]
    return list(pairwise(ends))


def _longest(size: Size, side: int) -> Size:
    """The longer side becomes `side`, the other one is rounded down to at least one pixel."""
    height, width = size
    if width >= height:
        return max(1, int(height / width * side)), side
    return side, max(1, int(width / height * side))
