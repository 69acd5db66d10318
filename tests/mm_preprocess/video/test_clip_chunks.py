"""Clips in chunks of frames; `test_families` compares them with those of transformers."""

from __future__ import annotations

from typing import Any

import pytest

from baton.errors import ModelError
from baton_mm_preprocess.processors.readers.files import Files
from baton_mm_preprocess.video.clip_chunks import ClipChunks
from baton_mm_preprocess.video.decode import VideoLimits, probe
from baton_mm_preprocess.video.families import VIDEO_FAMILIES
from baton_mm_preprocess.video.readers import video_processor_of
from tests.support.video_clips import encoded, moving

FAMILY = VIDEO_FAMILIES["KimiK25ForConditionalGeneration"]


def chunks(**changes: Any) -> ClipChunks:
    """The processor of files as Moonshot writes them."""
    settings = {"in_patch_limit": 24, "in_patch_limit_each_frame": 12, "patch_size": 7}
    settings |= {"patch_limit_on_one_side": 16, "merge_kernel_size": 2, "sample_fps": 2.0}
    settings |= {"temporal_merge_kernel_size": 4, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    given = {"media_proc_cfg": settings | changes}
    found = video_processor_of(Files({"vision_config": {}}, {}), given, FAMILY.kind, {})
    assert isinstance(found, ClipChunks)
    return found


@pytest.mark.row("F01.10")
def test_the_last_chunk_may_be_shorter() -> None:
    """Two frames a second from the first to the last; each has its own limit of patches."""
    processor = chunks()
    assert (processor.frame.most, processor.frame.side) == (12, 16)
    clip = probe(encoded(moving(12, 28, 28), fps=4), VideoLimits(10_000, 10_000, 100.0))
    found = processor(clip)
    assert found.grid == (6, 4, 4) and found.num_tokens == 2 * 4
    assert found.times.frames == tuple(index / 4 for index in (0, 2, 4, 7, 9, 11))
    pieces = [*FAMILY.placeholder(processor, found.grid, found.num_tokens, found.times)]
    assert pieces == [
        "00:00:00.000<|media_begin|>video<|media_content|>",
        *(4, "<|media_end|>"),
        "00:00:02.250<|media_begin|>video<|media_content|>",
        *(4, "<|media_end|>"),
    ]


def test_what_is_refused() -> None:
    for changes, words in (
        ({"temporal_merge_kernel_size": 2}, "chunks of 2 frames, and its encoder takes 4"),
        ({"in_patch_limit_video": 40}, "in_patch_limit_video is below"),
        ({"fixed_output_tokens": 9}, "fixed_output_tokens"),
    ):
        with pytest.raises(ModelError, match=words):
            chunks(**changes)
    assert chunks(in_patch_limit_video=48) == chunks(in_patch_limit_each_frame=12)
