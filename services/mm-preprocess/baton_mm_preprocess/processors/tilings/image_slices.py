"""MiniCPM-V (arXiv:2408.01800): the resized image, and slices of about the same area each."""

from __future__ import annotations

import msgspec
import numpy as np
from PIL import Image

from baton.slice_rules import Size, SliceRules
from baton_mm_preprocess.processors.colors import Colors
from baton_mm_preprocess.processors.patches import patchify
from baton_mm_preprocess.processors.processed_image import ProcessedImage
from baton_mm_preprocess.processors.sizes import pixels_of, resized, size_of
from baton_mm_preprocess.processors.tiles import cut


class ImageSlices(msgspec.Struct, frozen=True, tag=True):
    """Pixels [patches, 3 * patch * patch], those of the resized image first, each part row by row;
    the grid is (1, height, width) of the original image, which determines the parts."""

    colors: Colors
    scale: int
    most: int
    patch: int
    tokens_per_part: int
    numbered: bool = False
    """Whether the placeholder begins with the number of the image."""
    nested: bool = False
    """Whether all slices are between one pair of marks (MiniCPM-Llama3-V 2.5)."""
    resample: int = 3

    @property
    def rules(self) -> SliceRules:
        """How images are sliced."""
        return SliceRules(self.scale, self.most, self.patch)

    def __call__(self, image: Image.Image) -> ProcessedImage:
        """Process an image in RGB."""
        size, rules = size_of(image), self.rules
        parts = [pixels_of(resized(image, rules.resized(size), self.resample))]
        if (grid := rules.grid(size)) is not None:
            tall, wide = rules.slice(size, grid)
            plane: Size = (grid[0] * tall, grid[1] * wide)
            parts += cut(pixels_of(resized(image, plane, self.resample)), (tall, wide))
        patches = np.concatenate([patchify(self.colors(part), self.patch) for part in parts])
        return ProcessedImage(patches, (1, *size), len(parts) * self.tokens_per_part)
