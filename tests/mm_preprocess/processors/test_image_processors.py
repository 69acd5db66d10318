"""Image processors by the names of their classes."""

from __future__ import annotations

import pytest

from baton.errors import ModelError
from baton_mm_preprocess.processors.image_processors import READERS, processor_of
from baton_mm_preprocess.processors.readers.files import Files


def test_what_cannot_be_read_is_refused() -> None:
    with pytest.raises(ModelError, match=r"FuyuImageProcessor is not supported, only CLIP"):
        processor_of(Files({}, {"image_processor_type": "FuyuImageProcessor"}), "")
    for kind in READERS:
        with pytest.raises(ModelError, match="its image processor"):
            # The sizes of LFM2-VL are in config.json, those of others have names of their own.
            own = ("Lfm2VlImageProcessor", "AriaImageProcessor", "DeepseekOCR", "Isaac")
            sized = kind not in (*own, "Step3VL", "StepVL")
            wrong = "size" if sized else "image_mean"
            wrong = "patch_size" if kind == "Gemma4ImageProcessor" else wrong
            processor_of(Files({}, {wrong: "big", "do_resize": True}), kind)
