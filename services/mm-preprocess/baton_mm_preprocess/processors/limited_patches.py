"""Kimi-VL (arXiv:2504.07491): at most so many patches, padded to whole windows right and below."""

from __future__ import annotations

import math

import msgspec
import numpy as np
from PIL import Image

from baton_mm_preprocess.processors.colors import Colors
from baton_mm_preprocess.processors.patches import patchify
from baton_mm_preprocess.processors.processed_image import ProcessedImage
from baton_mm_preprocess.processors.sizes import pixels_of, resized, size_of


class LimitedPatches(msgspec.Struct, frozen=True, tag=True):
    """Pixels [patches, 3 * patch * patch], those that are merged side by side; the grid counts
    patches."""

    colors: Colors
    most: int
    """Patches of an image before it is padded."""
    patch: int = 14
    merge: int = 2
    resample: int = 3

    def __call__(self, image: Image.Image) -> ProcessedImage:
        """Process an image in RGB."""
        height, width = size_of(image)
        count = (width // self.patch) * (height // self.patch)
        if count > self.most:
            scale = math.sqrt(self.most / count)
            size = max(1, int(height * scale)), max(1, int(width * scale))
            image = resized(image, size, self.resample)
        window = self.patch * self.merge
        missing = [-side % window for side in size_of(image)]
        padded = np.pad(pixels_of(image), [(0, missing[0]), (0, missing[1]), (0, 0)])
        rows, columns = (side // self.patch for side in padded.shape[:2])
        patches = patchify(self.colors(padded), self.patch, self.merge)
        return ProcessedImage(patches, (1, rows, columns), rows * columns // self.merge**2)
