"""H2OVL-Mississippi (arXiv:2410.13611): InternVL's tiles of a single image on two scales."""

from __future__ import annotations

import msgspec
from PIL import Image

from baton_mm_preprocess.processors.dynamic_tiles import DynamicTiles
from baton_mm_preprocess.processors.processed_image import ProcessedImage
from baton_mm_preprocess.processors.sizes import (
    Size,
    pixels_of,
    resized,
    size_of,
    tile_grid,
)
from baton_mm_preprocess.processors.tiles import Pixels, colored, cut

_LEAST = 3
"""Maximum tiles of the second scale."""


class MultiScaleTiles(msgspec.Struct, frozen=True, tag=True):
    """Pixels [tiles, 3, tile, tile]: those of the second scale, those of the first, and the resized
    image, or the only tile of the second scale; the grid counts tiles."""

    tiles: DynamicTiles
    """Processor of each of several images."""

    def among(self, images: int) -> MultiScaleTiles | DynamicTiles:
        """The processor of each of this number of images of a request."""
        return self if images == 1 else self.tiles

    def __call__(self, image: Image.Image) -> ProcessedImage:
        """Process an image in RGB."""
        cut, size = self.tiles, size_of(image)
        first = tile_grid(size, cut.tile, 1, cut.most)
        second = tile_grid(size, cut.tile, _LEAST, cut.most, apart_from=first)
        coarse, fine = self._cut(image, first), self._cut(image, second)
        tiles = [*fine[:-1], *coarse[:-1], fine[-1]]
        count = len(tiles) * cut.tokens_per_tile
        return ProcessedImage(colored(tiles, cut.colors), (1, 1, len(tiles)), count)

    def _cut(self, image: Image.Image, grid: Size) -> list[Pixels]:
        """Tiles of one scale, and the resized image if there are several."""
        tile = self.tiles.tile
        size = grid[0] * tile[0], grid[1] * tile[1]
        pixels = cut(pixels_of(resized(image, size, self.tiles.resample)), tile)
        if len(pixels) > 1:
            pixels.append(pixels_of(resized(image, tile, self.tiles.resample)))
        return pixels
