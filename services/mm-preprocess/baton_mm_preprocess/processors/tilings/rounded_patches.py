"""Images of any size with sides rounded up to windows of patches: Isaac."""

from __future__ import annotations

import msgspec
from PIL import Image

from baton_mm_preprocess.processors.colors import Colors
from baton_mm_preprocess.processors.patches import patchify
from baton_mm_preprocess.processors.processed_image import ProcessedImage
from baton_mm_preprocess.processors.sizes import interpolated, pixels_of, rounded_up, size_of


class RoundedPatches(msgspec.Struct, frozen=True, tag=True):
    """Pixels [patches, 3 * patch * patch], merged patches adjacent; the grid counts patches."""

    colors: Colors
    patch: int
    merge: int
    least: int
    """Minimum patches of an image."""
    most: int

    def __call__(self, image: Image.Image) -> ProcessedImage:
        """Process an image in RGB."""
        area = self.merge**2
        factor = self.patch * self.merge
        size = rounded_up(size_of(image), factor, -(-self.least // area), self.most // area)
        pixels = self.colors(interpolated(pixels_of(image), size))
        rows, columns = size[0] // self.patch, size[1] // self.patch
        patches = patchify(pixels, self.patch, self.merge)
        return ProcessedImage(patches, (1, rows, columns), rows * columns // area)
