"""Video processors from files."""

from __future__ import annotations

import pytest

from baton.errors import ModelError
from baton_mm_preprocess.processors.readers.files import Files
from baton_mm_preprocess.video.readers import video_processor_of

KIND = "Qwen2VLVideoProcessor"


def test_the_operator_chooses_before_the_files_do() -> None:
    files = Files({}, {})
    sampling = video_processor_of(files, {}, KIND, {}).sampling
    assert (sampling.num_frames, sampling.fps, sampling.group) == (0, 2.0, 2)
    given = {"num_frames": 6, "video_processor_type": "Qwen2VLVideoProcessorFast"}
    assert video_processor_of(files, given, KIND, {}).sampling.num_frames == 6
    chosen = video_processor_of(files, given, KIND, {"fps": 4}).sampling
    assert (chosen.num_frames, chosen.fps) == (0, 4.0)
    tiles = Files({"vision_config": {"image_size": 30, "patch_size": 6}}, {})
    own = video_processor_of(tiles, {"fps": 1}, "LlavaOnevisionVideoProcessor", {})
    assert own.sampling.num_frames == 0, "a rate in the files is no default number"


def test_what_is_refused() -> None:
    with pytest.raises(ModelError, match="video processor NoSuch is not supported"):
        video_processor_of(Files({}, {}), {"video_processor_type": "NoSuch"}, KIND, {})
    with pytest.raises(ModelError, match="a field that makes no sense"):
        video_processor_of(Files({}, {}), {"size": 3}, KIND, {})
