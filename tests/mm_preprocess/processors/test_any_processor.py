"""What becomes of each of several images."""

from __future__ import annotations

from baton_mm_preprocess.processors.any_processor import among
from baton_mm_preprocess.processors.image_processors import processor_of
from baton_mm_preprocess.processors.readers.files import Files


def test_what_does_not_depend_on_the_number_of_images_stays() -> None:
    processor = processor_of(Files({}, {}), "Qwen2VLImageProcessor")
    assert among(processor, 1) is processor and among(processor, 3) is processor
