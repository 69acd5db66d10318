"""Molmo 2 of transformers."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.oracles.towers.sights import Grid, Images, Sight, pixels, sight
from tests.support import tiny_molmo2


@sight("Molmo2ForConditionalGeneration")
@torch.no_grad()
def molmo2(folder: Path, architecture: str) -> Sight:
    """Odd rows of patches, of the whole image and of crops; what is said of them is tested apart,
    for embeddings are added."""
    model, grids = tiny_molmo2.save(folder), list[Grid]([(1, 1, 2), (1, 2, 2), (1, 1, 1)])
    side = tiny_molmo2.CROP
    images: Images = [
        (pixels(number, 1 + grid[1] * grid[2], 3, side, side), grid)
        for number, grid in enumerate(grids)
    ]
    found = model.get_image_features(**tiny_molmo2.inputs(images))
    return Sight(images, list(found.pooler_output), None, tiny_molmo2.IMAGE_TOKEN)
