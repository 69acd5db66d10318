"""Gemma 4's images, number for number as transformers makes them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from transformers import Gemma4ImageProcessorPil, Gemma4Processor

from baton.errors import InvalidRequest, ModelError
from baton_mm_preprocess.processors.families import FAMILIES
from baton_mm_preprocess.processors.image_processors import processor_of
from baton_mm_preprocess.processors.patches import patchify
from baton_mm_preprocess.processors.placeholders import token_ids
from baton_mm_preprocess.processors.readers.files import Files
from tests.support.tiny_dual_encoders import picture

FAMILY = FAMILIES["Gemma4ForConditionalGeneration"]
SIZES = [(64, 48), (17, 90), (301, 200), (31, 29), (700, 130), (2000, 4), (3, 900), (480, 672)]
"""Widths and heights."""


def made(config: dict[str, Any], **fields: Any) -> Any:
    return processor_of(Files(config, fields), FAMILY.kind)


def test_pixels_and_placeholders_are_those_of_transformers() -> None:
    """Colors from 0 to 1, which the encoder moves to -1 to 1, are moved here."""
    normed = {"do_normalize": True, "image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.4, 0.6]}
    for fields in ({}, {"max_soft_tokens": 70}, {"max_soft_tokens": 1120, **normed}):
        processor, own = made({}, **fields), Gemma4ImageProcessorPil(**fields)
        for size in SIZES:
            found, wanted = processor(picture(*size)), own(picture(*size), return_tensors="np")
            (rows, columns), places = found.grid[1:], wanted["image_position_ids"][0]
            seen = places[places[:, 0] >= 0]
            assert (columns, rows) == tuple(seen.max(0) + 1), size
            cells = wanted["pixel_values"][0][: len(seen)].reshape(rows, columns, 16, 16, 3)
            plane = cells.transpose(4, 0, 2, 1, 3).reshape(3, rows * 16, columns * 16)
            expected = patchify(2 * (plane - 0.5), 16, 3)
            assert np.abs(found.pixels - expected).max() < 1e-5, size
            assert found.pixels.dtype == np.float32
            assert found.num_tokens == wanted["num_soft_tokens_per_image"][0], size
            writer = SimpleNamespace(boi_token="<b>", image_token="<i>", eoi_token="<e>")
            text = Gemma4Processor.replace_image_token(writer, wanted, 0)
            files = Files({"boi_token_id": 7, "eoi_token_id": 8}, fields)
            pieces = FAMILY.placeholder_of(files)(processor, found.grid, found.num_tokens)
            ids = token_ids(pieces, 9, lambda text: [])
            names = {7: "<b>", 8: "<e>", 9: "<i>"}
            assert "".join(names[token] for token in ids) == text


def test_tokens_see_one_another_where_the_config_says_so() -> None:
    for given, expected in ((None, False), ("vision", True)):
        config = {"text_config": {"use_bidirectional_attention": given}}
        assert FAMILY.is_bidirectional(Files(config, {})) is expected


def test_what_contradicts_itself_is_refused() -> None:
    with pytest.raises(ModelError, match="encoder takes 16 and 2"):
        made({"vision_config": {"pooling_kernel_size": 2}})
    with pytest.raises(ModelError, match="100 are not one of"):
        made({}, max_soft_tokens=100)
    with pytest.raises(ModelError, match="do_resize"):
        made({}, do_resize=False)


def test_an_image_without_positions_is_refused() -> None:
    processor = made({"vision_config": {"position_embedding_size": 48}}, max_soft_tokens=70)
    assert processor(picture(64, 48)).grid == (1, 21, 27)
    with pytest.raises(InvalidRequest, match=r"210 patches .* positions for 48"):
        processor(picture(900, 3))
