"""What a checkpoint says of its images."""

from __future__ import annotations

from baton_mm_preprocess.processors.readers.files import Files


def test_a_number_of_the_processor_goes_before_that_of_the_model() -> None:
    files = Files({"patch_size": 14, "tiles": 3}, {}, {"patch_size": 16})
    assert [files.number(name, 1) for name in ("patch_size", "tiles", "other")] == [16, 3, 1]
    assert files.vision == {} and Files({"vision_config": {"a": 1}}, {}).vision == {"a": 1}
