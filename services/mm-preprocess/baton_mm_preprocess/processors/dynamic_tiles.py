"""Tiles in a grid chosen by the image's size, and the resized image (InternVL,
arXiv:2404.16821)."""

from __future__ import annotations

import msgspec
from PIL import Image

from baton_mm_preprocess.processors.colors import Colors
from baton_mm_preprocess.processors.processed_image import ProcessedImage
from baton_mm_preprocess.processors.sizes import (
    Size,
    covering_grid,
    least_upscaled_grid,
    pixels_of,
    resized,
    roomy_grid,
    size_of,
    tile_grid,
)
from baton_mm_preprocess.processors.tiles import colored, cut


class DynamicTiles(msgspec.Struct, frozen=True, tag=True):
    """Pixels [tiles, 3, height, width], with the resized image if there are several tiles; the grid
    counts tiles without it."""

    colors: Colors
    tile: Size
    resample: int
    tokens_per_tile: int
    least: int = 1
    most: int = 12
    use_thumbnail: bool = True
    rule: str = "aspect"
    """"aspect" selects the closest aspect ratio, "least_upscaled" the least enlargement (Command A
    Vision), "covering" the fewest tiles that show most of the image (Ovis 2), "roomy" a similar
    aspect ratio and area (Llama Nemotron Nano VL)."""
    thumbnail_first: bool = False

    def __call__(self, image: Image.Image) -> ProcessedImage:
        """Process an image in RGB."""
        rows, columns = self.grid(size_of(image))
        size = rows * self.tile[0], columns * self.tile[1]
        tiles = cut(pixels_of(resized(image, size, self.resample)), self.tile)
        if self.use_thumbnail and len(tiles) > 1:
            place = 0 if self.thumbnail_first else len(tiles)
            tiles.insert(place, pixels_of(resized(image, self.tile, self.resample)))
        pixels = colored(tiles, self.colors)
        return ProcessedImage(pixels, (1, rows, columns), len(pixels) * self.tokens_per_tile)

    def grid(self, size: Size) -> Size:
        """Rows and columns of tiles."""
        if self.rule == "covering":
            return covering_grid(size, self.tile[0], self.most)
        if self.rule == "roomy":
            return roomy_grid(size, self.tile, self.most)
        if self.rule == "least_upscaled":
            return least_upscaled_grid(size, self.tile, self.most)
        return tile_grid(size, self.tile, self.least, self.most)
