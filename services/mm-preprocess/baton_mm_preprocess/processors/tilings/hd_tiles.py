"""Phi-4-multimodal (the HD transform, arXiv:2503.01743): the resized image, then tiles of an
enlarged one, padded at the right or the bottom."""

from __future__ import annotations

import math

import msgspec
import numpy as np
from PIL import Image

from baton.errors import InvalidRequest
from baton_mm_preprocess.processors.colors import Colors
from baton_mm_preprocess.processors.processed_image import ProcessedImage
from baton_mm_preprocess.processors.sizes import (
    Size,
    cubic,
    pixels_of,
    resized,
    size_of,
    tile_grid,
)

_LEAST = 10
"""Pixels of the shorter side of an enlarged image."""
_WHITE = 255
_LINEAR = 2


class HdTiles(msgspec.Struct, frozen=True, tag=True):
    """Pixels [1 + tiles, 3, tile, tile], the resized image first; the grid is (1, rows, columns) of
    the patches of all tiles without padding."""

    colors: Colors
    tile: int
    patch: int
    most: int
    """Maximum tiles of an image."""

    def __call__(self, image: Image.Image) -> ProcessedImage:
        """Process an image in RGB. Raises `InvalidRequest` if it is too long and narrow."""
        size = size_of(image)
        fitted, (tall, wide) = self.fitted(size), self.frame(size)
        if min(fitted) < _LEAST:
            raise InvalidRequest(
                f"The image is {size[1]} x {size[0]} pixels, too narrow for this model. Send one "
                "whose sides differ less.",
                code="invalid_image",
            )
        pixels = pixels_of(resized(image, fitted, _LINEAR))
        missing = [(0, tall - fitted[0]), (0, wide - fitted[1]), (0, 0)]
        plane = self.colors(np.pad(pixels, missing, constant_values=_WHITE))
        cells = plane.reshape(3, tall // self.tile, self.tile, wide // self.tile, self.tile)
        tiles = cells.transpose(1, 3, 0, 2, 4).reshape(-1, 3, self.tile, self.tile)
        resized_image = cubic(plane, (self.tile, self.tile))
        rows, columns = self.content_patches(size)
        kept, side = -(-rows // 2), self.tile // self.patch // 2
        count = kept * (-(-columns // 2) + 1) + 1 + side * (side + 1)
        return ProcessedImage(
            np.concatenate((resized_image[None], tiles)), (1, rows, columns), count
        )

    def grid(self, size: Size) -> Size:
        """Rows and columns of tiles: as many as cover the image, or if there are too many, those
        with the closest aspect ratio."""
        rows, columns = (math.ceil(side / self.tile) for side in size)
        return (
            (rows, columns)
            if rows * columns <= self.most
            else tile_grid(size, (self.tile, self.tile), 1, self.most)
        )

    def frame(self, size: Size) -> Size:
        """Height and width of all tiles."""
        rows, columns = self.grid(size)
        return rows * self.tile, columns * self.tile

    def fitted(self, size: Size) -> Size:
        """Size of the resized image: one of its sides is that of the frame."""
        (height, width), (tall, wide) = size, self.frame(size)
        by_height, by_width = tall / height, wide / width
        if by_width < by_height:
            return int(height * by_width), wide
        return tall, int(width * by_height)

    def content_patches(self, size: Size) -> Size:
        """Rows and columns of patches of the frame without padding."""
        pairs = zip(self.frame(size), self.fitted(size), strict=True)
        rows, columns = (
            whole // self.patch - (whole - side) // self.patch for whole, side in pairs
        )
        return rows, columns
