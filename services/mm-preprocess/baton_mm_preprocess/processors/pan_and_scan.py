"""Gemma 3 (arXiv:2503.19786): the resized image, and crops along the longer side of an elongated
one."""

from __future__ import annotations

import math

import msgspec
from PIL import Image

from baton_mm_preprocess.processors.colors import Colors
from baton_mm_preprocess.processors.processed_image import ProcessedImage
from baton_mm_preprocess.processors.sizes import Size, pixels_of, resized, size_of
from baton_mm_preprocess.processors.tiles import colored


class PanAndScan(msgspec.Struct, frozen=True, tag=True):
    """Pixels [1 + crops, 3, height, width], the resized image first; the grid is (crops, 1, 1), or
    (1, 1, 1) without crops."""

    colors: Colors
    size: Size
    resample: int
    tokens_per_tile: int
    most: int = 0
    """Maximum crops; 0 for none."""
    least_edge: int = 256
    """Minimum pixels of the shorter side of a crop."""
    least_aspect: float = 1.2
    """Minimum ratio of the longer to the shorter side of an image that is cropped."""

    def __call__(self, image: Image.Image) -> ProcessedImage:
        """Process an image in RGB."""
        crops = [image.crop(box) for box in self.boxes(size_of(image))]
        tiles = [pixels_of(resized(tile, self.size, self.resample)) for tile in (image, *crops)]
        count = len(tiles) * self.tokens_per_tile
        return ProcessedImage(colored(tiles, self.colors), (max(1, len(crops)), 1, 1), count)

    def boxes(self, size: Size) -> list[tuple[int, int, int, int]]:
        """Left, top, right and bottom of each crop."""
        short, long = min(size), max(size)
        if not self.most or long / short < self.least_aspect:
            return []
        count = min(long // self.least_edge, math.floor(long / short + 0.5))
        count = min(self.most, max(2, count))
        step = math.ceil(long / count)
        if min(step, short) < self.least_edge:
            return []
        spans = [(first * step, min((first + 1) * step, long)) for first in range(count)]
        if size[1] >= size[0]:
            return [(first, 0, last, short) for first, last in spans]
        return [(0, first, short, last) for first, last in spans]
