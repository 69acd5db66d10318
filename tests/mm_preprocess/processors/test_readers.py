"""Processors from files."""

from __future__ import annotations

import pytest

from baton.errors import ModelError
from baton_mm_preprocess.processors.readers import READERS, Files, processor_of


def test_what_cannot_be_read_is_refused() -> None:
    with pytest.raises(ModelError, match=r"FuyuImageProcessor is not supported, only CLIP"):
        processor_of(Files({}, {"image_processor_type": "FuyuImageProcessor"}), "")
    for kind in READERS:
        with pytest.raises(ModelError, match="its image processor"):
            # The sizes of LFM2-VL are in config.json, those of others have names of their own.
            own = ("Lfm2VlImageProcessor", "AriaImageProcessor", "DeepseekOCR", "Isaac")
            sized = kind not in own
            wrong = "size" if sized else "image_mean"
            processor_of(Files({}, {wrong: "big", "do_resize": True}), kind)


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
