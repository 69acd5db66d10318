"""Kimi-VL (arXiv:2504.07491) and Kimi K2.5 (arXiv:2602.02276): a limited number of patches, padded
to complete windows at the right and the bottom."""

from __future__ import annotations

import math

import msgspec
import numpy as np
from PIL import Image

from baton_mm_preprocess.processors.colors import Colors
from baton_mm_preprocess.processors.patches import patchify
from baton_mm_preprocess.processors.processed_image import ProcessedImage
from baton_mm_preprocess.processors.sizes import Size, pixels_of, resized, size_of


class LimitedPatches(msgspec.Struct, frozen=True, tag=True):
    """Pixels [patches, 3 * patch * patch], merged patches adjacent; the grid counts patches."""

    colors: Colors
    most: int
    """Maximum patches of an image before padding."""
    patch: int = 14
    merge: int = 2
    resample: int = 3
    side: int = 0
    """Maximum patches along a side; 0 for no limit."""

    def __call__(self, image: Image.Image) -> ProcessedImage:
        """Process an image in RGB."""
        size = self.size(size_of(image))
        image = resized(image, size, self.resample)
        rows, columns = self.grid(size)
        missing = rows * self.patch - size[0], columns * self.patch - size[1]
        padded = np.pad(pixels_of(image), [(0, missing[0]), (0, missing[1]), (0, 0)])
        patches = patchify(self.colors(padded), self.patch, self.merge)
        return ProcessedImage(patches, (1, rows, columns), rows * columns // self.merge**2)

    def size(self, size: Size) -> Size:
        """Height and width of an image of this size before padding."""
        tall, wide = size
        count = max(1, tall // self.patch) * max(1, wide // self.patch)
        scale = min(1.0, math.sqrt(self.most / count))
        if self.side:
            scale = min(scale, self.side * self.patch / max(size))
        return max(1, int(tall * scale)), max(1, int(wide * scale))

    def grid(self, size: Size) -> Size:
        """Rows and columns of the patches that cover an image of this size."""
        window = self.patch * self.merge
        rows, columns = (-(-length // window) * self.merge for length in size)
        return rows, columns
