"""Aria (arXiv:2410.05993): images with a fixed longer side, as rows of patches."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt
from PIL import Image

from baton.anyres import best_resolution
from baton_mm_preprocess.processors.colors import Colors
from baton_mm_preprocess.processors.patches import patchify
from baton_mm_preprocess.processors.processed_image import ProcessedImage
from baton_mm_preprocess.processors.sizes import (
    Size,
    by_longer_side,
    inside,
    pixels_of,
    resized,
    size_of,
)
from baton_mm_preprocess.processors.tiles import cut, padded


class PaddedPatches(msgspec.Struct, frozen=True, tag=True):
    """Pixels [patches, 3 * patch * patch], black where a patch exceeds the image; the grid counts
    tiles and the patches of each."""

    colors: Colors
    longest: int
    """Pixels of the longer side."""
    least: int
    """Minimum pixels of the other side."""
    patch: int
    resample: int
    tokens_per_tile: int
    offered: tuple[Size, ...] = ()
    """Frame sizes to cut square tiles of `longest` pixels from; empty if images are not cut."""

    def __call__(self, image: Image.Image) -> ProcessedImage:
        """Process an image in RGB."""
        tiles = self._tiles(image) if self.offered else [image]
        size = by_longer_side(size_of(tiles[0]), self.longest, self.least)
        patches = [self._patches(resized(tile, size, self.resample)) for tile in tiles]
        rows, columns = (-(-side // self.patch) for side in size)
        count = len(tiles)
        pixels = np.concatenate(patches)
        return ProcessedImage(pixels, (count, rows, columns), count * self.tokens_per_tile)

    def _tiles(self, image: Image.Image) -> list[Image.Image]:
        frame = best_resolution(size_of(image), self.offered)
        large = resized(image, inside(size_of(image), frame), self.resample)
        tiles = cut(padded(pixels_of(large), frame), (self.longest, self.longest))
        return [Image.fromarray(tile) for tile in tiles]

    def _patches(self, image: Image.Image) -> npt.NDArray[np.float32]:
        missing = [-side % self.patch for side in size_of(image)]
        padded = np.pad(pixels_of(image), [(0, missing[0]), (0, missing[1]), (0, 0)])
        return patchify(self.colors(padded), self.patch)
