"""Processors from the files of checkpoints."""

from __future__ import annotations

import pytest

from baton.errors import ModelError
from baton_mm_preprocess.processors.image_processors import processor_of
from baton_mm_preprocess.processors.readers import Files


@pytest.mark.parametrize(
    ("kind", "config", "image", "words"),
    [
        ("CLIPImageProcessor", {"vision_config": {"image_size": 30}}, {}, r"wants \(30, 30\)"),
        ("PixtralImageProcessor", {"vision_config": {"patch_size": 7}}, {}, "16 pixels .* 7"),
    ],
)
def test_files_that_contradict_each_other(
    kind: str, config: dict[str, object], image: dict[str, object], words: str
) -> None:
    with pytest.raises(ModelError, match=words):
        processor_of(Files(config, image), kind)
