"""Readers of images that become patches."""

from __future__ import annotations

import pytest

from baton.errors import ModelError
from baton_mm_preprocess.processors.image_processors import processor_of
from baton_mm_preprocess.processors.readers.files import Files


def test_an_encoder_of_other_patches() -> None:
    files = Files({"vision_config": {"patch_size": 7}}, {})
    with pytest.raises(ModelError, match=r"16 pixels .* 7"):
        processor_of(files, "PixtralImageProcessor")
