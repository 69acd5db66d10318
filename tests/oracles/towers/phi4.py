"""Phi-4-multimodal of transformers, under its name and as Microsoft saves it."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.oracles.towers.sights import Grid, Images, Sight, pixels, sight
from tests.support import tiny_phi4


@sight("Phi4MMForCausalLM", "Phi4MultimodalForCausalLM")
@torch.no_grad()
def phi4_multimodal(folder: Path, architecture: str) -> Sight:
    """Tiles with padding, which is seen by no patch; an odd row of patches is merged with one of
    padding."""
    model = tiny_phi4.save(folder)
    if architecture == "Phi4MMForCausalLM":
        tiny_phi4.as_published(folder)
    grids: list[Grid] = [(1, 7, 4), (1, 4, 9), (1, 8, 8)]
    sizes = ((3, 4 * 3 + 7), (4, 2 * 6 + 7), (5, 4 * 5 + 7))
    images: Images = [
        (pixels(number, tiles, 3, tiny_phi4.TILE, tiny_phi4.TILE), grid)
        for number, ((tiles, _), grid) in enumerate(zip(sizes, grids, strict=True))
    ]
    counts = [count for _, count in sizes]
    tokens = torch.full((1, sum(counts)), tiny_phi4.IMAGE_TOKEN)
    embed, inputs = model.model.embed_tokens_extend.image_embed, tiny_phi4.inputs(images)
    found = embed(tokens, model.model.embed_tokens(tokens), **inputs)[0]
    return Sight(images, list(torch.split(found, counts)), model, tiny_phi4.IMAGE_TOKEN)
