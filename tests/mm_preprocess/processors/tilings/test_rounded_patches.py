"""Isaac's images, by its published rules."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from baton_mm_preprocess.processors.families import FAMILIES
from baton_mm_preprocess.processors.image_processors import processor_of
from baton_mm_preprocess.processors.readers.files import Files
from tests.support.tiny_dual_encoders import picture

SIZES = [(64, 48), (17, 90), (301, 200), (31, 29), (5, 9)]
"""Widths and heights."""


def scaled(scale: float, width: int, height: int) -> tuple[int, int]:
    """Height and width as multiples of 14."""
    tall, wide = (max(14, math.ceil(scale * side / 14) * 14) for side in (height, width))
    return tall, wide


@pytest.mark.row("V35")
def test_sides_are_rounded_up_at_the_scale_nearest_to_one() -> None:
    """2 x 2 windows of patches of 7 pixels, 8 to 60 patches; pixels as torch interpolates."""
    config = {"vision_config": {"patch_size": 7, "pixel_shuffle_scale_factor": 2}}
    limits = {"vision_max_num_patches": 60, "vision_min_num_patches": 8}
    family = FAMILIES["IsaacForConditionalGeneration"]
    made = processor_of(Files(config | limits, {}), family.kind, whatever=True)
    for width, height in SIZES:
        image, found = picture(width, height), made(picture(width, height))
        tall, wide = found.grid[1] * 7, found.grid[2] * 7
        assert 8 <= found.grid[1] * found.grid[2] <= 60, (width, height)
        assert found.num_tokens == found.grid[1] * found.grid[2] // 4
        near = [scaled(scale, width, height) for scale in np.geomspace(0.05, 20, 4000)]
        fits = [size for size in near if 8 <= size[0] * size[1] / 49 <= 60]
        whole = scaled(1.0, width, height)
        nearest = fits[0] if whole[0] * whole[1] / 49 < 8 else fits[-1]
        assert (tall, wide) == (whole if whole in fits else nearest), (width, height)
        plane = torch.from_numpy(np.asarray(image).transpose(2, 0, 1).astype(np.float32))[None]
        shown = torch.nn.functional.interpolate(
            plane, (tall, wide), mode="bilinear", align_corners=False
        )
        blocks = (shown[0].numpy() / 127.5 - 1).reshape(3, tall // 14, 2, 7, wide // 14, 2, 7)
        expected = blocks.transpose(1, 4, 2, 5, 0, 3, 6).reshape(-1, 3 * 49)
        assert np.abs(found.pixels - expected).max() < 1e-4, (width, height)
