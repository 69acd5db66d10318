"""Idefics3 and SmolVLM (arXiv:2504.05299): tiles of one size, then the resized image as one
more."""

from __future__ import annotations

import msgspec
from PIL import Image

from baton_mm_preprocess.processors.colors import Colors
from baton_mm_preprocess.processors.processed_image import ProcessedImage
from baton_mm_preprocess.processors.sizes import (
    at_most,
    longest_edge,
    pixels_of,
    resized,
    size_of,
    whole_tiles,
)
from baton_mm_preprocess.processors.tiles import colored, cut

_LONGEST = 4096
"""Pixels of a side."""


class ImageSplits(msgspec.Struct, frozen=True, tag=True):
    """Pixels [tiles + 1, 3, tile, tile]; the grid counts tiles, (1, 0, 0) without tiles."""

    colors: Colors
    longest: int
    """Pixels of the longer side before it is cut."""
    tile: int
    resample: int
    tokens_per_tile: int
    splits: bool = True

    def __call__(self, image: Image.Image) -> ProcessedImage:
        """Process an image in RGB."""
        size = at_most(longest_edge(size_of(image), self.longest), _LONGEST)
        image, tile = resized(image, size, self.resample), (self.tile, self.tile)
        rows = columns = 0
        if self.splits:
            image = resized(image, whole_tiles(size, self.tile), self.resample)
            rows, columns = image.height // self.tile, image.width // self.tile
        tiles = [] if rows * columns <= 1 else cut(pixels_of(image), tile)
        thumbnail = pixels_of(
            image if size_of(image) == tile else resized(image, tile, self.resample)
        )
        pixels = colored([*tiles, thumbnail], self.colors)
        grid = (1, rows, columns) if tiles else (1, 0, 0)
        return ProcessedImage(pixels, grid, len(pixels) * self.tokens_per_tile)
