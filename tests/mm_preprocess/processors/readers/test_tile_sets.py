"""Readers of images that become tiles."""

from __future__ import annotations

import pytest

from baton.errors import ModelError
from baton_mm_preprocess.processors.image_processors import processor_of
from baton_mm_preprocess.processors.readers.files import Files


def test_what_the_encoder_does_not_take() -> None:
    with pytest.raises(ModelError, match="cuts no tiles"):
        processor_of(Files({}, {"crop_to_patches": False}), "DeepseekOcr2ImageProcessor")
    sizes = {"size": {"height": 640, "width": 640}}
    with pytest.raises(ModelError, match="takes 1024 and 768"):
        processor_of(Files({}, sizes), "DeepseekOcr2ImageProcessor")
