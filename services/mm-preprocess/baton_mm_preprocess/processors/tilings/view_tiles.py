"""DeepSeek-OCR (arXiv:2510.18234): the resized image centered on gray, and tiles with the closest
aspect ratio for an image that is larger than a tile."""

from __future__ import annotations

import msgspec
import numpy as np
from PIL import Image

from baton_mm_preprocess.processors.colors import Colors
from baton_mm_preprocess.processors.patches import patchify
from baton_mm_preprocess.processors.processed_image import ProcessedImage
from baton_mm_preprocess.processors.sizes import Size, pixels_of, resized, size_of, tile_grid
from baton_mm_preprocess.processors.tiles import Pixels, cut

_MERGE = 4
"""Patches along a side of an embedding."""


class ViewTiles(msgspec.Struct, frozen=True, tag=True):
    """Pixels [patches, 3 * patch * patch], row by row, those of the resized image first; the grid
    is (1, rows, columns) of tiles, one tile for none."""

    colors: Colors
    base_size: int
    """Pixels of a side of the resized image."""
    tile: int
    patch: int
    least: int
    most: int
    background: tuple[int, int, int]
    resample: int
    newlines: bool
    """Whether there is an embedding after each row (DeepSeek-OCR 1)."""

    def __call__(self, image: Image.Image) -> ProcessedImage:
        """Process an image in RGB."""
        size, parts = size_of(image), [self._resized(image)]
        rows, columns = self.grid(size)
        if rows * columns > 1:
            plane = resized(image, (rows * self.tile, columns * self.tile), self.resample)
            parts += cut(pixels_of(plane), (self.tile, self.tile))
        patches = [patchify(self.colors(part), self.patch) for part in parts]
        count = self._count(rows, columns)
        return ProcessedImage(np.concatenate(patches), (1, rows, columns), count)

    def grid(self, size: Size) -> Size:
        """Rows and columns of tiles; one tile means none."""
        if max(size) <= self.tile:
            return 1, 1
        return tile_grid(size, (self.tile, self.tile), self.least, self.most)

    def _resized(self, image: Image.Image) -> Pixels:
        longer = max(size_of(image))
        scale = self.base_size / longer
        tall, wide = (max(1, round(side * scale)) for side in size_of(image))
        frame = np.empty((self.base_size, self.base_size, 3), np.uint8)
        frame[:] = self.background
        top, left = self._start(tall), self._start(wide)
        frame[top : top + tall, left : left + wide] = pixels_of(
            resized(image, (tall, wide), self.resample)
        )
        return frame

    def _start(self, side: int) -> int:
        """Offset of the image; Pillow's pad, used by the first version, rounds to even."""
        missing = self.base_size - side
        return round(missing / 2) if self.newlines else missing // 2

    def _count(self, rows: int, columns: int) -> int:
        """Number of embeddings, including a separator at the end."""
        base, tile = (-(-side // (self.patch * _MERGE)) for side in (self.base_size, self.tile))
        tiles = rows * columns if rows * columns > 1 else 0
        ends = base + (rows * tile if tiles else 0) if self.newlines else 0
        return base**2 + tiles * tile**2 + ends + 1
