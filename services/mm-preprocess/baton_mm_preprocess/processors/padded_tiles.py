"""Tiles of a canvas that contains the image, padded at the right and the bottom (Llama 3.2 Vision),
and the resized image (Llama 4)."""

from __future__ import annotations

import msgspec
import numpy as np
from PIL import Image

from baton_mm_preprocess.processors.colors import Colors
from baton_mm_preprocess.processors.processed_image import ProcessedImage
from baton_mm_preprocess.processors.sizes import (
    canvas_grid,
    floored_inside,
    pixels_of,
    resized,
    size_of,
)
from baton_mm_preprocess.processors.tiles import colored, cut


class PaddedTiles(msgspec.Struct, frozen=True, tag=True):
    """Pixels [tiles, 3, tile, tile]; with `use_thumbnail`, the resized image last if there are
    several; the grid counts tiles without it."""

    colors: Colors
    tile: int
    resample: int
    tokens_per_tile: int
    most: int = 16
    use_thumbnail: bool = True

    def __call__(self, image: Image.Image) -> ProcessedImage:
        """Process an image in RGB."""
        size = size_of(image)
        rows, columns = canvas_grid(size, self.tile, self.most)
        canvas = rows * self.tile, columns * self.tile
        # A small image is enlarged to one tile at most.
        frame = [min(max(side, self.tile), most) for side, most in zip(size, canvas, strict=True)]
        pixels = pixels_of(
            resized(image, floored_inside(size, (frame[0], frame[1])), self.resample)
        )
        missing = [most - side for most, side in zip(canvas, pixels.shape, strict=False)]
        padded = np.pad(pixels, [(0, missing[0]), (0, missing[1]), (0, 0)])
        tiles = cut(padded, (self.tile, self.tile))
        if self.use_thumbnail and len(tiles) > 1:
            tiles.append(pixels_of(resized(image, (self.tile, self.tile), self.resample)))
        tensor = colored(tiles, self.colors)
        return ProcessedImage(tensor, (1, rows, columns), len(tensor) * self.tokens_per_tile)
