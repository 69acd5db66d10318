"""Step3's tiles against Step 3.7's processor of transformers, which plans them alike, and against
torch's resizing of floats, which Step3's own code has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from baton_mm_preprocess.processors.families import FAMILIES
from baton_mm_preprocess.processors.image_processors import processor_of
from baton_mm_preprocess.processors.patches import patchify
from baton_mm_preprocess.processors.readers.files import Files
from baton_mm_preprocess.processors.tilings.tiles_first import TilesFirst
from tests.support.tiny_dual_encoders import picture
from tests.support.video_processors import torch_processor

SIZES = [(50, 43), (51, 30), (20, 90), (33, 140), (90, 80), (3100, 40), (52, 52)]
"""Width and height: small, long, thin, very long, large, beyond the limit, of the encoder."""
SMALL = {"vision_config": {"image_size": 52, "patch_size": 4}}


def made(stem: str, **config: Any) -> TilesFirst:
    family = FAMILIES[f"{stem}ForConditionalGeneration"]
    found = processor_of(Files(config, {}), family.kind, whatever=True)
    assert isinstance(found, TilesFirst)
    return found


@pytest.mark.row("V19", "V20")
def test_tiles_and_placeholders_are_those_of_step_3_7() -> None:
    own = torch_processor("step3p7.image_processing_step3p7", "Step3p7ImageProcessor")
    writer = transformers.Step3p7Processor.__new__(transformers.Step3p7Processor)
    published = made("StepVL")
    assert published == made("Step3VL", understand_projector_stride=2)
    assert (published.base_size, published.tile) == (728, 504)
    assert (published.base_tokens, published.tile_tokens) == (169, 81)
    processor = made("StepVL", **SMALL)
    writer.image_feature_placeholder, writer.patch_feature_placeholder = "*" * 16, "*" * 9
    for size in SIZES:
        planned = own._plan_patches(*size, 52, 36)
        columns, rows = planned[3:5]
        masks = [[c == columns - 1 and r < rows - 1 for r in range(rows) for c in range(columns)]]
        inputs = {"num_local_patches": [rows * columns], "patch_newline_masks": masks}
        found = processor(picture(*size))
        assert found.grid == (1, max(1, rows), max(1, columns)), size
        family = FAMILIES["StepVLForConditionalGeneration"]
        pieces = family.placeholder(processor, found.grid, found.num_tokens)
        text = "".join(p if isinstance(p, str) else "*" * p for p in pieces)
        assert text == writer.replace_image_token(inputs, 0), size
        assert text.count("*") == found.num_tokens, size


def smoothed(image: Image.Image, side: int, patch: int) -> Any:
    """Patches of a part as a square: floats are resized."""
    values = torch.from_numpy(np.asarray(image, np.float32) / 255).permute(2, 0, 1)
    mean = torch.tensor([0.48145466, 0.4578275, 0.40821073])[:, None, None]
    std = torch.tensor([0.26862954, 0.26130258, 0.27577711])[:, None, None]
    how: Any = {"mode": "bilinear", "align_corners": False, "antialias": True}
    resized = torch.nn.functional.interpolate(((values - mean) / std)[None], (side, side), **how)
    return patchify(resized[0].numpy(), patch)


@pytest.mark.row("V19")
def test_pixels_of_parts() -> None:
    """Tiles that go beyond the image are black there."""
    processor = made("Step3VL", **SMALL)
    assert (processor.tile, processor.base_tokens, processor.tile_tokens) == (36, 36, 16)
    for size, cut, boxes in (
        ((40, 30), (40, 30), []),
        ((43, 20), (40, 20), [(0, 0), (20, 0)]),
        ((90, 30), (108, 30), [(0, 0), (36, 0), (72, 0)]),
        ((80, 70), (108, 72), [(x, y) for y in (0, 36) for x in (0, 36, 72)]),
    ):
        image = picture(*size)
        plane = image.resize(cut, Image.Resampling.BILINEAR)
        side = 20 if size == (43, 20) else 36
        crops = [plane.crop((x, y, x + side, y + side)) for x, y in boxes]
        parts = [smoothed(crop, 36, 4) for crop in crops] + [smoothed(image, 52, 4)]
        found = processor(image)
        assert found.pixels.shape == (81 * len(boxes) + 169, 48), size
        assert np.abs(found.pixels - np.concatenate(parts)).max() < 1e-4, size
