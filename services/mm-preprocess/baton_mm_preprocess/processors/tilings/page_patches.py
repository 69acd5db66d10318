"""Nemotron Parse: the patches of a page that is at most as large as the encoder's, centered on
white."""

from __future__ import annotations

import msgspec
import numpy as np
from PIL import Image

from baton_mm_preprocess.processors.colors import Colors
from baton_mm_preprocess.processors.patches import patchify
from baton_mm_preprocess.processors.processed_image import ProcessedImage
from baton_mm_preprocess.processors.sizes import Size, interpolated, no_larger, pixels_of, size_of
from baton_mm_preprocess.processors.tiles import Pixels, padded

_WHITE = (255, 255, 255)


class PagePatches(msgspec.Struct, frozen=True, tag=True):
    """Pixels [patches, 3 * patch * patch] row by row; the grid counts patches."""

    colors: Colors
    page: Size
    patch: int
    columns: int = 4
    """Patches of a row that form one vector."""

    def __call__(self, image: Image.Image) -> ProcessedImage:
        """Process an image in RGB."""
        frame = padded(self._fitted(image), self.page, _WHITE)
        rows, columns = self.page[0] // self.patch, self.page[1] // self.patch
        patches = patchify(self.colors(frame), self.patch)
        count = rows * (columns // self.columns) + 1
        return ProcessedImage(patches, (1, rows, columns), count)

    def _fitted(self, image: Image.Image) -> Pixels:
        size = no_larger(size_of(image), self.page)
        if size == size_of(image):
            return pixels_of(image)
        return np.rint(interpolated(pixels_of(image), size)).astype(np.uint8)
