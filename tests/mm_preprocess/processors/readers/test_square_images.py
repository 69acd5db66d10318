"""Readers of square images."""

from __future__ import annotations

import pytest

from baton.errors import ModelError
from baton_mm_preprocess.processors.image_processors import processor_of
from baton_mm_preprocess.processors.readers.files import Files


def test_an_encoder_of_another_size() -> None:
    files = Files({"vision_config": {"image_size": 30}}, {})
    with pytest.raises(ModelError, match=r"wants \(30, 30\)"):
        processor_of(files, "CLIPImageProcessor")
