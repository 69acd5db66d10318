"""Images of one size: LLaVA, PaliGemma and other models of one tile."""

from __future__ import annotations

import msgspec
from PIL import Image

from baton_mm_preprocess.image.processor import Processor
from baton_mm_preprocess.processors.processed_image import ProcessedImage


class FixedSize(msgspec.Struct, frozen=True, tag=True):
    """Pixels [3, height, width] by the steps of CLIP or SigLIP; the grid is unused."""

    steps: Processor
    num_tokens: int

    def __call__(self, image: Image.Image) -> ProcessedImage:
        """Process an image in RGB."""
        return ProcessedImage(self.steps(image), (1, 1, 1), self.num_tokens)
