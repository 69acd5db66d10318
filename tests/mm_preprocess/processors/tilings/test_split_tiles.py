"""Tiles and the whole image of LFM2-VL. Its processor of transformers needs torchvision: the pixels
are those of Pillow's filter, and sizes those of `baton.tile_splits`."""

from __future__ import annotations

import numpy as np
import pytest

from baton.errors import ModelError
from baton_mm_preprocess.processors.families import FAMILIES
from baton_mm_preprocess.processors.image_processors import processor_of
from baton_mm_preprocess.processors.patches import patchify
from baton_mm_preprocess.processors.readers.files import Files
from tests.support.tiny_dual_encoders import picture

FAMILY = FAMILIES["Lfm2VlForConditionalGeneration"]
SETTINGS = {
    **{"tile_size": 24, "encoder_patch_size": 6, "min_image_tokens": 2},
    **{"max_image_tokens": 6, "max_tiles": 4},
}


def written(processor: object, grid: tuple[int, int, int], count: int) -> str:
    pieces = FAMILY.placeholder(processor, grid, count)
    return "".join("*" * piece if isinstance(piece, int) else str(piece) for piece in pieces)


@pytest.mark.row("V51", "F02.05")
def test_tiles_then_the_whole_image() -> None:
    processor = processor_of(Files({}, SETTINGS), FAMILY.kind)
    image = picture(100, 24)
    found = processor(image)
    plane = np.asarray(image.resize((96, 24), 2)).transpose(2, 0, 1) / 127.5 - 1
    tiles = [plane[:, :, left : left + 24] for left in range(0, 96, 24)]
    whole = np.asarray(image.resize((60, 12), 2)).transpose(2, 0, 1) / 127.5 - 1
    expected = [patchify(part.astype(np.float32), 6, 2) for part in (*tiles, whole)]
    assert np.abs(found.pixels - np.concatenate(expected)).max() < 1e-5
    assert found.grid == (1, 24, 100) and found.num_tokens == 4 * 4 + 5
    marks = "".join(f"<|img_row_1_col_{column}|>****" for column in range(1, 5))
    text = written(processor, found.grid, found.num_tokens)
    assert text == f"<|image_start|>{marks}<|img_thumbnail|>*****<|image_end|>"


def test_a_small_image_and_what_files_say() -> None:
    image = picture(29, 30)
    found = (processor := processor_of(Files({}, SETTINGS), FAMILY.kind))(image)
    assert written(processor, found.grid, found.num_tokens) == "<|image_start|>****<|image_end|>"
    bare = processor_of(Files({}, SETTINGS, {"use_image_special_tokens": False}), FAMILY.kind)
    assert written(bare, found.grid, found.num_tokens) == "****"
    alone = processor_of(Files({}, SETTINGS | {"do_image_splitting": False}), FAMILY.kind)
    assert alone(picture(100, 24)).num_tokens == 5
    with pytest.raises(ModelError, match="use_thumbnail"):
        processor_of(Files({}, SETTINGS | {"use_thumbnail": False}), FAMILY.kind)
