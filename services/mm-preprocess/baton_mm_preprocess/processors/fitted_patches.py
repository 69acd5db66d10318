"""Images as rows of patches, with a maximum side: Pixtral (arXiv:2410.07073)."""

from __future__ import annotations

import msgspec
from PIL import Image

from baton_mm_preprocess.processors.colors import Colors
from baton_mm_preprocess.processors.patches import patchify
from baton_mm_preprocess.processors.processed_image import ProcessedImage
from baton_mm_preprocess.processors.sizes import fitted, pixels_of, resized, size_of


class FittedPatches(msgspec.Struct, frozen=True, tag=True):
    """Pixels [patches, 3 * patch * patch], merged patches adjacent; the grid counts patches."""

    colors: Colors
    resample: int
    longest: int
    """Maximum pixels of the longer side."""
    patch: int = 16
    merge: int = 1

    def __call__(self, image: Image.Image) -> ProcessedImage:
        """Process an image in RGB."""
        size = fitted(size_of(image), self.longest, self.patch * self.merge)
        pixels = self.colors(pixels_of(resized(image, size, self.resample)))
        rows, columns = size[0] // self.patch, size[1] // self.patch
        patches = patchify(pixels, self.patch, self.merge)
        return ProcessedImage(patches, (1, rows, columns), rows * columns // self.merge**2)
