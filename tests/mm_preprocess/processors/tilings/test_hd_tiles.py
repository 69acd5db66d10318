"""The HD transform of Phi-4-multimodal, by its published rules: the processor of transformers needs
torchvision."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from baton.errors import InvalidRequest, ModelError
from baton_mm_preprocess.processors.families import FAMILIES
from baton_mm_preprocess.processors.image_processors import processor_of
from baton_mm_preprocess.processors.readers.files import Files
from tests.support.tiny_dual_encoders import picture

SETTINGS = {"size": {"height": 56, "width": 56}, "patch_size": 7, "dynamic_hd": 4}


def made(settings: dict[str, Any]) -> Any:
    config = {"vision_config": {"image_size": 56, "patch_size": 7}}
    return processor_of(Files(config, settings), FAMILIES["Phi4MultimodalForCausalLM"].kind)


@pytest.mark.row("V58", "F02.07", "F23.02")
def test_the_whole_image_is_the_padded_frame_of_its_tiles_made_small() -> None:
    """The frame, its padding in patches, and the whole image by cubics that are not smoothed."""
    frames = [(64, 48, 1, 2), (17, 90, 2, 1), (300, 200, 2, 2), (31, 29, 1, 1), (230, 60, 1, 4)]
    for width, height, rows, columns in frames:
        image = picture(width, height)
        scale = min(56 * columns / width, 56 * rows / height)
        size = tuple(
            whole if whole / side == scale else int(side * scale)
            for whole, side in ((56 * columns, width), (56 * rows, height))
        )
        plane = Image.new("RGB", (56 * columns, 56 * rows), "white")
        plane.paste(image.resize(size, Image.Resampling.BILINEAR), (0, 0))
        pixels = torch.from_numpy(np.asarray(plane).transpose(2, 0, 1) / 127.5 - 1).float()
        found = made(SETTINGS)(image)
        whole = F.interpolate(pixels[None], (56, 56), mode="bicubic")[0]
        assert np.abs(found.pixels[0] - whole.numpy()).max() < 1e-3
        tiles = [
            pixels[:, 56 * r : 56 * r + 56, 56 * c : 56 * c + 56]
            for r in range(rows)
            for c in range(columns)
        ]
        assert np.abs(found.pixels[1:] - torch.stack(tiles).numpy()).max() < 1e-5
        tall, wide = (
            8 * count - (56 * count - own) // 7
            for count, own in ((rows, size[1]), (columns, size[0]))
        )
        assert found.grid == (1, tall, wide)
        tall, wide = math.ceil(tall / 2), math.ceil(wide / 2)
        assert found.num_tokens == 4 * 4 + 1 + tall * wide + tall + 4, "as transformers counts"


def test_what_cannot_be_cut_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="900 x 9 pixels, too narrow"):
        made(SETTINGS)(picture(900, 9))
    with pytest.raises(ModelError, match="in other ways than its config"):
        made(SETTINGS | {"patch_size": 14})
