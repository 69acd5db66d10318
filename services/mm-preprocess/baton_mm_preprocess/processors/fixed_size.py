"""Images of one size: LLaVA, PaliGemma and other models of one tile."""

from __future__ import annotations

import msgspec
from PIL import Image

from baton_mm_preprocess.image.processor import Processor
from baton_mm_preprocess.processors.processed_image import ProcessedImage
from baton_mm_preprocess.processors.sizes import pixels_of, resized, size_of
from baton_mm_preprocess.processors.tiles import padded


class Padding(msgspec.Struct, frozen=True):
    """Makes squares of images without a change of their aspect ratio."""

    side: int
    least: int
    """Minimum pixels of the shorter side before it is padded."""
    background: tuple[int, int, int]
    resample: int

    def __call__(self, image: Image.Image) -> Image.Image:
        """A square of `side` pixels with the image in its middle."""
        scale = self.side / max(image.size)
        tall, wide = (max(round(side * scale), self.least) for side in size_of(image))
        small = pixels_of(resized(image, (tall, wide), self.resample))
        return Image.fromarray(padded(small, (self.side, self.side), self.background))


class FixedSize(msgspec.Struct, frozen=True, tag=True):
    """Pixels [3, height, width] by the steps of CLIP or SigLIP; the grid is unused."""

    steps: Processor
    num_tokens: int
    padding: Padding | None = None

    def __call__(self, image: Image.Image) -> ProcessedImage:
        """Process an image in RGB."""
        square = image if self.padding is None else self.padding(image)
        return ProcessedImage(self.steps(square), (1, 1, 1), self.num_tokens)
