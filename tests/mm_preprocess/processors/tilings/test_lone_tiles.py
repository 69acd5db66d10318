"""VILA's tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from baton.errors import ModelError
from baton_mm_preprocess.processors.any_processor import among
from baton_mm_preprocess.processors.families import FAMILIES
from baton_mm_preprocess.processors.image_processors import processor_of
from baton_mm_preprocess.processors.placeholders import token_ids
from baton_mm_preprocess.processors.readers.files import Files
from tests.support.tiny_dual_encoders import picture

_CONFIG: dict[str, Any] = {
    "vision_tower_cfg": {"image_size": 28, "patch_size": 7},
    "mm_projector_cfg": {"mm_projector_type": "mlp_downsample_3x3_fix"},
    "image_aspect_ratio": "dynamic",
    "max_tiles": 4,
}
_SIZE = {"size": {"height": 28, "width": 28}}


def processor(**fields: Any) -> Any:
    return processor_of(Files(_CONFIG | fields, _SIZE), "VILA", whatever=True)


@pytest.mark.row("V07")
def test_an_image_alone_is_cut_into_the_tiles_of_internvl() -> None:
    """Each tile ends with a line that has an embedding of its own, and with one of the prompt."""
    made, family = processor(), FAMILIES["LlavaLlamaModel"]
    chat = {"vision_config": {"image_size": 28, "patch_size": 7}, "max_dynamic_patch": 4}
    known: Any = processor_of(Files(chat, {}), "InternVLChat")
    placeholder = family.placeholder_of(Files(_CONFIG, {}))
    for size in ((64, 48), (17, 90), (30, 30)):
        found, other = made(picture(*size)), known(picture(*size))
        assert found.grid == other.grid and found.pixels.shape == other.pixels.shape
        assert found.num_tokens == 4 * len(found.pixels)
        several = among(made, 2)(picture(*size))
        assert (several.grid, several.num_tokens) == ((1, 0, 0), 4)
        assert np.array_equal(several.pixels[0], found.pixels[-1])
        for one, lines in ((found, [10, 10]), (several, [10])):
            pieces = placeholder(made, one.grid, one.num_tokens)
            ids = token_ids(pieces, 5, lambda text: [10] * len(text.split("\n")[1:2]))
            assert ids == ([5] * 4 + lines) * len(one.pixels)
    plain = processor(image_aspect_ratio="resize")(picture(64, 48))
    assert plain.grid == (1, 0, 0)


def test_what_is_not_done_is_refused_by_name() -> None:
    for fields, match in (
        ({"image_aspect_ratio": "dynamic_s2"}, "dynamic_s2, which is unknown"),
        ({"vision_tower_cfg": {"image_size": 30, "patch_size": 5}}, "differ in the size"),
    ):
        with pytest.raises(ModelError, match=match):
            processor(**fields)
    files = Files({"image_encoder": {"_target_": "llava.model.encoders.TSPImageEncoder"}}, {})
    with pytest.raises(ModelError, match="TSPImageEncoder is unknown"):
        FAMILIES["LlavaLlamaModel"].placeholder_of(files)
