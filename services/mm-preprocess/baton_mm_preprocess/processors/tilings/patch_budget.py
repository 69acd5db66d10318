"""Images of any aspect ratio with as many patches as a budget allows: Gemma 4."""

from __future__ import annotations

import math

import msgspec
from PIL import Image

from baton.errors import InvalidRequest
from baton_mm_preprocess.processors.colors import Colors
from baton_mm_preprocess.processors.patches import patchify
from baton_mm_preprocess.processors.processed_image import ProcessedImage
from baton_mm_preprocess.processors.sizes import Size, pixels_of, resized, size_of


class PatchBudget(msgspec.Struct, frozen=True, tag=True):
    """Pixels [patches, 3 * patch * patch], merged patches adjacent; the grid counts patches. Images
    are enlarged, too."""

    colors: Colors
    patch: int
    merge: int
    most_tokens: int
    resample: int
    longest: int
    """Most patches of a side, for which the encoder has positions."""

    def __call__(self, image: Image.Image) -> ProcessedImage:
        """Process an image in RGB. Raises `InvalidRequest` for one with too long a side."""
        size = self.size(size_of(image))
        rows, columns = size[0] // self.patch, size[1] // self.patch
        if max(rows, columns) > self.longest:
            raise InvalidRequest(
                f"The image has {max(rows, columns)} patches on its longer side, and the encoder "
                f"has positions for {self.longest}. Send one that is closer to a square.",
                code="image_too_large",
            )
        pixels = self.colors(pixels_of(resized(image, size, self.resample)))
        patches = patchify(pixels, self.patch, self.merge)
        return ProcessedImage(patches, (1, rows, columns), rows * columns // self.merge**2)

    def size(self, size: Size) -> Size:
        """Height and width of an image of this size: those of the budget with the same aspect
        ratio, rounded down to windows. A side shorter than a window is one, beside which the other
        is as many windows long as the image is longer than it is short."""
        (height, width), edge = size, self.patch * self.merge
        area = self.most_tokens * edge**2
        scale = math.sqrt(area / (height * width))
        tall, wide = (math.floor(scale * side / edge) for side in size)
        if not tall:
            tall, wide = 1, min(width // height, self.most_tokens)
        elif not wide:
            tall, wide = min(height // width, self.most_tokens), 1
        return tall * edge, wide * edge
