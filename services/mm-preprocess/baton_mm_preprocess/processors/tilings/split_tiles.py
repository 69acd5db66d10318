"""LFM2-VL (arXiv:2511.23404): tiles of one size, then the resized image."""

from __future__ import annotations

import msgspec
import numpy as np
from PIL import Image

from baton.tile_splits import TileSplits
from baton_mm_preprocess.processors.colors import Colors
from baton_mm_preprocess.processors.patches import patchify
from baton_mm_preprocess.processors.processed_image import ProcessedImage
from baton_mm_preprocess.processors.sizes import pixels_of, resized, size_of
from baton_mm_preprocess.processors.tiles import cut


class SplitTiles(msgspec.Struct, frozen=True, tag=True):
    """Pixels [patches, 3 * patch * patch], merged patches adjacent; the grid is (1, height, width)
    of the original image, which determines the parts."""

    colors: Colors
    rules: TileSplits
    resample: int
    marked: bool = True
    """Whether tiles and the resized image are between marks."""

    def __call__(self, image: Image.Image) -> ProcessedImage:
        """Process an image in RGB."""
        size, rules = size_of(image), self.rules
        parts = [pixels_of(resized(image, rules.resized(size), self.resample))]
        if (grid := rules.grid(size)) is not None:
            plane = grid[0] * rules.tile, grid[1] * rules.tile
            pixels = pixels_of(resized(image, plane, self.resample))
            parts = [*cut(pixels, (rules.tile, rules.tile)), *parts]
        patches = [patchify(self.colors(part), rules.patch, rules.merge) for part in parts]
        count = sum(map(len, patches)) // rules.merge**2
        return ProcessedImage(np.concatenate(patches), (1, *size), count)
