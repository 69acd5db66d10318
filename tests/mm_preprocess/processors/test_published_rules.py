"""Image processors that transformers does not have, against an independent re-computation of the
published rules."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from baton.errors import ModelError
from baton_mm_preprocess.processors.families import FAMILIES
from baton_mm_preprocess.processors.placeholders import token_ids
from baton_mm_preprocess.processors.readers import Files, processor_of
from tests.support.tiny_dual_encoders import picture

SIZES = [(64, 48), (17, 90), (301, 200), (31, 29), (700, 130)]
"""Widths and heights."""


def processor(architecture: str, config: dict[str, Any], image: dict[str, Any]) -> Any:
    family = FAMILIES[architecture]
    return processor_of(Files(config, image), family.kind, whatever=family.whatever)


def colored(image: Image.Image, mean: float = 0.5, std: float = 0.5) -> npt.NDArray[np.float64]:
    """[3, height, width]."""
    return (np.asarray(image).transpose(2, 0, 1) / 255 - mean) / std


def test_tiles_of_bee_and_r_4b_are_those_of_llava_onevision() -> None:
    settings = {"size": {"height": 30, "width": 30}, "image_grid_pinpoints": [[30, 60], [60, 60]]}
    config = {"vision_config": {"patch_size": 6}, "vision_aspect_ratio": "anyres_max_4"}
    known = processor("LlavaOnevisionForConditionalGeneration", config, settings)
    for name in ("Bee", "R"):
        own = settings | {"image_processor_type": f"{name}ImageProcessor"}
        assert processor(f"{name}ForConditionalGeneration", config, own) == known


def test_rows_of_tarsier_end_with_a_token_of_its_config() -> None:
    family = FAMILIES["TarsierForConditionalGeneration"]
    files = Files({"image_newline_idx": 7, "image_new_idx": 8}, {})
    pieces = family.placeholder_of(files)(None, (1, 1, 1), 9)
    assert token_ids(pieces, 5, lambda text: []) == [5, 5, 5, 7] * 3 + [8]
    with pytest.raises(ModelError, match="says nothing of 'image_new"):
        family.placeholder_of(Files({}, {}))


def test_keye_and_dots_ocr_cut_patches_of_images_of_any_size() -> None:
    """Both sides multiples of two patches within limits; short sides of Keye-VL's images are
    enlarged before."""
    limits = {"patch_size": 7, "merge_size": 2, "min_pixels": 1400, "max_pixels": 30_000}
    limits |= {"temporal_patch_size": 1, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    for width, height in [*SIZES, (5, 40), (300, 9)]:
        for name, enlarged in (
            ("KeyeForConditionalGeneration", True),
            ("KeyeVL1_5ForConditionalGeneration", True),
            ("DotsOCRForCausalLM", False),
        ):
            w, h = width, height
            if enlarged and h < 14:
                w, h = round(w * 14 / h), 14
            if enlarged and w < 14:
                w, h = 14, round(h * 14 / w)
            tall, wide = round(h / 14) * 14, round(w / 14) * 14
            if tall * wide > 30_000:
                beta = math.sqrt(h * w / 30_000)
                tall, wide = (max(14, math.floor(s / beta / 14) * 14) for s in (h, w))
            elif tall * wide < 1400:
                beta = math.sqrt(1400 / (h * w))
                tall, wide = (math.ceil(s * beta / 14) * 14 for s in (h, w))
            image = picture(width, height)
            found = processor(name, {}, limits)(image)
            assert found.grid == (1, tall // 7, wide // 7), (name, width, height)
            assert found.num_tokens == tall * wide // 14**2
            plane = colored(image.resize((wide, tall), Image.Resampling.BICUBIC))
            blocks = plane.reshape(3, tall // 14, 2, 7, wide // 14, 2, 7)
            expected = blocks.transpose(1, 4, 2, 5, 0, 3, 6).reshape(-1, 3 * 49)
            assert np.abs(found.pixels - expected).max() < 1e-5, (name, width, height)
