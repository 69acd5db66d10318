"""Images of any size as a sequence of patches: Qwen2-VL (arXiv:2409.12191) and similar models."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from PIL import Image

from baton_mm_preprocess.processors.colors import Colors
from baton_mm_preprocess.processors.patches import patchify
from baton_mm_preprocess.processors.processed_image import ProcessedImage
from baton_mm_preprocess.processors.sizes import (
    Size,
    at_least,
    by_shorter_side,
    pixels_of,
    resized,
    side_by_side,
    size_of,
    smart,
)

ENLARGE: dict[str, Callable[[Size, int], Size]] = {
    "at_least": at_least,
    "side_by_side": side_by_side,
    "by_shorter_side": by_shorter_side,
}


class PatchSequence(msgspec.Struct, frozen=True, tag=True):
    """Pixels [patches, 3 * frames * patch * patch], merged patches adjacent; the grid counts
    patches."""

    colors: Colors
    resample: int
    min_pixels: int
    max_pixels: int
    patch: int = 14
    merge: int = 2
    frames: int = 2
    volume: bool = False
    """Whether the limits count the pixels of all frames, and short sides are enlarged (GLM-4V)."""
    enlarge: str = ""
    """How short sides are enlarged, a key of `ENLARGE`; "" for not at all."""
    stepwise: bool = False
    """Whether an image is enlarged and resized in two steps (Kanana V)."""
    framed: bool = False
    """Whether there is an embedding after each row, and one at both ends (Hunyuan-VL)."""

    def __call__(self, image: Image.Image) -> ProcessedImage:
        """Process an image in RGB."""
        factor = self.patch * self.merge
        size, share = size_of(image), self.frames if self.volume else 1
        if self.volume:
            size = at_least(size, factor)
        if self.enlarge:
            size = ENLARGE[self.enlarge](size, factor)
        if self.stepwise and size != size_of(image):
            image = resized(image, size, self.resample)
        size = smart(size, factor, self.min_pixels / share, self.max_pixels / share)
        pixels = self.colors(pixels_of(resized(image, size, self.resample)))
        rows, columns = size[0] // self.patch, size[1] // self.patch
        patches = patchify(pixels, self.patch, self.merge, self.frames)
        count = rows * columns // self.merge**2
        count += rows // self.merge + 2 if self.framed else 0
        return ProcessedImage(patches, (1, rows, columns), count)
