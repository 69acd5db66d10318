"""LLaVA-NeXT and LLaVA-OneVision (arXiv:2408.03326): the resized image, and tiles at the supported
resolution that fits it best."""

from __future__ import annotations

import msgspec
import numpy as np
from PIL import Image

from baton.anyres import Size, best_resolution, limited, unpadded
from baton_mm_preprocess.image.processor import Processor
from baton_mm_preprocess.processors.processed_image import ProcessedImage
from baton_mm_preprocess.processors.sizes import (
    by_longer_side_up,
    inside,
    inside_rounded_down,
    pixels_of,
    resized,
    size_of,
)
from baton_mm_preprocess.processors.tiles import Pixels, cut, padded


class AnyResolution(msgspec.Struct, frozen=True, tag=True):
    """Pixels [1 + tiles, 3, tile, tile], the resized image first; the grid is (1, height, width) of
    the original image, which determines the padding of the tiles."""

    steps: Processor
    tile: int
    offered: tuple[Size, ...]
    resample: int
    patches: int
    """Patches along a side of a tile."""
    most_tiles: int = 0
    """Maximum number of tiles' embeddings before their grid is reduced; 0 for no limit."""
    rounded_down: bool = False
    """Whether the image size within the frame is rounded down instead of up."""
    background: tuple[int, int, int] = (0, 0, 0)
    """Color of the padding."""
    squared: bool = False
    """Whether the resized image is padded to a square instead of stretched."""
    unpadded_rounded: bool = True
    """`rounded` of `baton.anyres.unpadded_range`."""

    def __call__(self, image: Image.Image) -> ProcessedImage:
        """Process an image in RGB."""
        size = size_of(image)
        frame = best_resolution(size, self.offered)
        fit = inside_rounded_down if self.rounded_down else inside
        large = resized(image, fit(size, frame), self.resample)
        tile = self.tile, self.tile
        cuts = [self._resized(image), *cut(padded(pixels_of(large), frame, self.background), tile)]
        tiles = [self.steps(Image.fromarray(cut_tile)) for cut_tile in cuts]
        return ProcessedImage(np.stack(tiles), (1, *size), self.num_tokens(size, frame))

    def _resized(self, image: Image.Image) -> Pixels:
        tile = self.tile, self.tile
        if not self.squared:
            return pixels_of(resized(image, tile, self.resample))
        size = by_longer_side_up(size_of(image), self.tile)
        return padded(pixels_of(resized(image, size, self.resample)), tile, self.background)

    def num_tokens(self, size: Size, frame: Size) -> int:
        """Embeddings of the resized image, of the tiles without padding, and one per row of
        these."""
        grid = frame[0] // self.tile * self.patches, frame[1] // self.tile * self.patches
        rows, columns = limited(
            unpadded(size, grid, rounded=self.unpadded_rounded), self.patches, self.most_tiles
        )
        return self.patches**2 + rows * columns + rows
