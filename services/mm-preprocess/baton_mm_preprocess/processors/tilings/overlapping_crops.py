"""Molmo 2 (arXiv:2601.10611): the resized image, and overlapping crops of an enlarged one."""

from __future__ import annotations

import math

import msgspec
import numpy as np
from PIL import Image

from baton_mm_preprocess.processors.colors import Colors
from baton_mm_preprocess.processors.processed_image import ProcessedImage
from baton_mm_preprocess.processors.sizes import (
    Size,
    least_upscaled_grid,
    linear,
    pixels_of,
    size_of,
)
from baton_mm_preprocess.processors.tiles import Pixels, colored

_POOL = 2
"""Patches along a side of an embedding."""


class OverlappingCrops(msgspec.Struct, frozen=True, tag=True):
    """Pixels [1 + crops, 3, crop, crop], the resized image first; the grid is (1, rows, columns) of
    crops."""

    colors: Colors
    crop: int
    patch: int
    most: int
    """Maximum crops of an image."""
    margins: int
    """Pixels that a crop shares with its two neighbours in total."""

    def __call__(self, image: Image.Image) -> ProcessedImage:
        """Process an image in RGB."""
        rows, columns = self.grid(size_of(image))
        plane = self._resized(image, self.frame(rows, columns))
        step = self.crop - self.margins
        crops = [
            plane[row * step : row * step + self.crop, column * step : column * step + self.crop]
            for row in range(rows)
            for column in range(columns)
        ]
        resized_image = self._resized(image, (self.crop, self.crop))
        sides = self.embeddings((self.crop, self.crop)), self.embeddings(self.frame(rows, columns))
        count = sum(tall * wide for tall, wide in sides)
        return ProcessedImage(
            colored([resized_image, *crops], self.colors), (1, rows, columns), count
        )

    def grid(self, size: Size) -> Size:
        """Rows and columns of crops: those that enlarge the image least, without the margins."""
        inner = max(1, size[0] - self.margins), max(1, size[1] - self.margins)
        step = self.crop - self.margins
        return least_upscaled_grid(inner, (step, step), self.most)

    def frame(self, rows: int, columns: int) -> Size:
        """Height and width of the area that the crops cover."""
        step = self.crop - self.margins
        return rows * step + self.margins, columns * step + self.margins

    def embeddings(self, size: Size) -> Size:
        """Rows and columns of the embeddings of this number of pixels."""
        rows, columns = (math.ceil(side // self.patch / _POOL) for side in size)
        return rows, columns

    def _resized(self, image: Image.Image, size: Size) -> Pixels:
        values = pixels_of(image).transpose(2, 0, 1).astype(np.float32)
        rounded = np.rint(linear(values, size)).clip(0, 255)
        return rounded.transpose(1, 2, 0).astype(np.uint8)
