"""VILA (arXiv:2412.04468): a single image of a request is cut into tiles."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from PIL import Image

from baton_mm_preprocess.processors.dynamic_tiles import DynamicTiles
from baton_mm_preprocess.processors.processed_image import ProcessedImage


class LoneTiles(msgspec.Struct, frozen=True, tag=True):
    """Pixels of `DynamicTiles`; the grid counts tiles, and is (1, 0, 0) if none are cut: then the
    prompt has no lines between them."""

    tiles: DynamicTiles
    lined: bool = True
    """Whether tiles are cut, even a single one."""

    def among(self, images: int) -> LoneTiles:
        """The processor of each of this number of images of a request."""
        if images == 1:
            return self
        return LoneTiles(msgspec.structs.replace(self.tiles, least=1, most=1), lined=False)

    def __call__(self, image: Image.Image) -> ProcessedImage:
        """Process an image in RGB."""
        processed = self.tiles(image)
        return processed if self.lined else replace(processed, grid=(1, 0, 0))
