"""Step3 (arXiv:2507.19427): square tiles row by row, then the resized image."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt
from PIL import Image

from baton_mm_preprocess.processors.colors import Colors
from baton_mm_preprocess.processors.patches import patchify
from baton_mm_preprocess.processors.processed_image import ProcessedImage
from baton_mm_preprocess.processors.sizes import Size, pixels_of, resized, size_of

_LINEAR = 2
_THIN, _LONG = 32, 4
"""Images with a side below this number of pixels and above this aspect ratio are padded to
squares."""
_ROUND_UP = 0.2
"""A tile is added if the image covers more than this share of it."""


class TilesFirst(msgspec.Struct, frozen=True, tag=True):
    """Pixels [patches, 3 * patch * patch], row by row, those of tiles first; the grid is (1, rows,
    columns) of tiles, one tile for none."""

    colors: Colors
    base_size: int
    """Pixels of a side of the resized image."""
    tile: int
    patch: int
    base_tokens: int
    tile_tokens: int
    most: int = 3024
    """Maximum pixels of the longer side."""

    def __call__(self, image: Image.Image) -> ProcessedImage:
        """Process an image in RGB."""
        image = _squared(image)
        size = self._limited(size_of(image))
        image, window = resized(image, size, _LINEAR), self.window(size)
        rows, columns = (max(1, side // window) if window else 1 for side in _cut(size, window))
        parts = []
        if rows * columns > 1:
            plane = resized(image, _cut(size, window), _LINEAR)
            boxes = [(x * window, y * window) for y in range(rows) for x in range(columns)]
            crops = [plane.crop((x, y, x + window, y + window)) for x, y in boxes]
            parts = [self._patches(crop, self.tile) for crop in crops]
        patches = np.concatenate([*parts, self._patches(image, self.base_size)])
        count = len(parts) * self.tile_tokens + self.base_tokens
        return ProcessedImage(patches, (1, rows, columns), count)

    def window(self, size: Size) -> int:
        """Side of the squares that an image of this size is cut into; 0 for none."""
        longer, shorter = max(size), min(size)
        if longer <= self.base_size:
            return shorter if longer / shorter > 1.5 else 0
        return min(shorter, self.tile) if longer / shorter > _LONG else self.tile

    def _limited(self, size: Size) -> Size:
        if max(size) <= self.most:
            return size
        scale = self.most / max(size)
        return max(1, int(size[0] * scale)), max(1, int(size[1] * scale))

    def _patches(self, image: Image.Image, side: int) -> npt.NDArray[np.float32]:
        """Resize a part to a square of this side, smoothed without rounding to bytes."""
        values = pixels_of(image).astype(np.float32)
        if values.shape[:2] != (side, side):
            planes = (Image.fromarray(plane) for plane in np.moveaxis(values, 2, 0))
            squares = (resized(plane, (side, side), _LINEAR) for plane in planes)
            values = np.stack([np.asarray(square) for square in squares], axis=2)
        return patchify(self.colors(values), self.patch)


def _squared(image: Image.Image) -> Image.Image:
    """Place a very thin image in the corner of a black square."""
    longer, shorter = max(image.size), min(image.size)
    if shorter >= _THIN or longer / shorter <= _LONG:
        return image
    square = Image.new(image.mode, (longer, longer))
    square.paste(image)
    return square


def _cut(size: Size, window: int) -> Size:
    """Height and width in complete windows, for sides of at least one window."""
    rows, columns = (_snapped(side, window) for side in size)
    return rows, columns


def _snapped(side: int, window: int) -> int:
    if not window or side < window:
        return side
    return window * (side // window + (side / window - side // window > _ROUND_UP))
