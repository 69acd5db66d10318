"""Clips of families, number for number as transformers makes them."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from baton.errors import ModelError
from baton_mm_preprocess.processors.readers.files import Files
from baton_mm_preprocess.video.clip_chunks import ClipChunks
from baton_mm_preprocess.video.decode import VideoLimits, probe
from baton_mm_preprocess.video.families import VIDEO_FAMILIES
from baton_mm_preprocess.video.readers import video_processor_of
from tests.support.video_clips import decoded, encoded, moving
from tests.support.video_processors import video_processor, written

LIMITS = VideoLimits(10_000_000, 10_000, 1_000.0)
SIZES = [(12, 60, 80, 8), (5, 34, 200, 3), (31, 128, 96, Fraction(24_000, 1001))]
"""Frames, height, width and frames per second."""
_SQUARE = {"height": 30, "width": 30}
_SIGLIP = {"vision_config": {"image_size": 30, "patch_size": 6}}
ROWS: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ("Qwen2VLForConditionalGeneration", {}, {"min_pixels": 784, "max_pixels": 40_000}, {}),
    (
        "Qwen2_5_VLForConditionalGeneration",
        {},
        {"size": {"shortest_edge": 3136, "longest_edge": 10_000}, "num_frames": 5}
        | {"cap_pixels_per_frame": True, "max_video_tokens": 20},
        {},
    ),
    (
        "Qwen3VLForConditionalGeneration",
        {},
        {"size": {"shortest_edge": 4096, "longest_edge": 65_536}, "fps": 4},
        {},
    ),
    (
        "Qwen3VLForConditionalGeneration",
        {},
        {"size": {"shortest_edge": 1024, "longest_edge": 65_536}}
        | {"cap_pixels_per_frame": True, "max_video_tokens": 6},
        {},
    ),
    ("Glm4vForConditionalGeneration", {}, {"fps": 3}, {}),
    (
        "Kimi_K25ForConditionalGeneration",
        {},
        {"size": {"max_height": 10, "max_width": 10}, "max_patches": 60, "fps": 3},
        {},
    ),
    (
        "LlavaOnevisionForConditionalGeneration",
        _SIGLIP,
        {"size": _SQUARE, "num_frames": 4},
        {"num_image_tokens": 25},
    ),
    (
        "InternVLForConditionalGeneration",
        {},
        {"size": _SQUARE, "num_frames": 3},
        {"image_seq_length": 3},
    ),
    (
        "SmolVLMForConditionalGeneration",
        {"vision_config": {"patch_size": 13}},
        {"max_image_size": {"longest_edge": 52}, "size": {"longest_edge": 104}}
        | {"video_sampling": {"fps": 2, "max_frames": 3, "video_size": {"longest_edge": 104}}},
        {"image_seq_len": 4},
    ),
]
"""Architecture, config.json, settings of the video processor, and of the processor."""


def reference(kind: str, settings: dict[str, Any], frames: Any, fps: float) -> Any:
    """What transformers makes of all frames of a file, sampled by its own rule."""
    import torch

    if kind == "Qwen2VLVideoProcessor" and "num_frames" not in settings:
        settings = settings | {"fps": 2}
    processor = video_processor(kind, **settings, do_sample_frames=True)
    about = {"total_num_frames": len(frames), "fps": fps, "duration": len(frames) / fps}
    features = processor(
        [torch.tensor(frames).permute(0, 3, 1, 2)],
        video_metadata=[about],
        return_metadata=True,
        return_tensors="pt",
    )
    return SimpleNamespace(processor=processor, features=features)


def by_windows(values: Any, grid: tuple[int, int, int], merge: int) -> Any:
    """[patches, ...] row by row, with those that are merged side by side."""
    frames, rows, columns = grid
    cells = values.reshape(frames, rows // merge, merge, columns // merge, merge, -1)
    return cells.transpose(0, 1, 3, 2, 4, 5)


@pytest.mark.row("F02.04", "F23.01", "F01.10")
def test_frames_pixels_and_placeholders_equal_those_of_transformers() -> None:
    """Pixels within 1/255, but for two in ten thousand that are 2/255 apart: torch has weights of
    15 bits and Pillow of 22."""
    for architecture, config, settings, extra in ROWS:
        family = VIDEO_FAMILIES[architecture]
        processor = video_processor_of(Files(config, {}, extra), settings, family.kind, {})
        stem = architecture.removesuffix("ForConditionalGeneration")
        for count, height, width, fps in SIZES:
            data = encoded(moving(count, height, width), fps=fps)
            made = reference(family.kind, settings, decoded(data), float(fps))
            found = processor(probe(data, LIMITS))
            where = f"{architecture} {count} {height} {width}"
            about = made.features["video_metadata"][0]
            assert found.times.frames == pytest.approx([float(t) for t in about.timestamps]), where
            values = next(v for k, v in made.features.items() if k.startswith("pixel_values"))
            values = values.numpy()
            if isinstance(processor, ClipChunks):  # Row by row in transformers.
                values = by_windows(values, found.grid, processor.frame.merge)
            levels = np.abs(values.reshape(found.pixels.shape) - found.pixels) * 255
            levels *= min(made.processor.image_std)
            assert levels.max() < 2.1 and (levels > 1.1).mean() < 2e-4, where
            if "video_grid_thw" in made.features:
                grids = made.features["video_grid_thw"].tolist()  # Of chunks, in Kimi K2.5.
                assert found.grid == (sum(grid[0] for grid in grids), *grids[0][1:]), where
            text, token = written(stem, made.processor, made.features, extra)
            pieces = family.placeholder(processor, found.grid, found.num_tokens, found.times)
            assert "".join(p if isinstance(p, str) else token * p for p in pieces) == text, where
            assert text.count(token) == found.num_tokens, where
            if stem == "Qwen2_5_VL":
                expected = made.processor.temporal_patch_size / float(about.sampled_fps)
                assert found.times.seconds_per_grid == pytest.approx(expected)


def test_tokens_of_families() -> None:
    qwen = VIDEO_FAMILIES["Qwen2VLForConditionalGeneration"]
    assert qwen.video_token(Files({"video_token_id": 4}, {}), lambda text: [5]) == 4
    assert qwen.marker_token(Files({}, {}), lambda text: [5]) == 5
    glm = VIDEO_FAMILIES["Glm4vForConditionalGeneration"]
    files, spell = Files({"video_token_id": 4}, {}), {"<|image|>": [3]}
    assert (glm.marker_token(files, spell.__getitem__), glm.token) == (4, "<|image|>")
    assert glm.video_token(files, spell.__getitem__) == 3
    with pytest.raises(ModelError, match="no token <video>"):
        VIDEO_FAMILIES["SmolVLMForConditionalGeneration"].marker_token(
            Files({}, {}), lambda text: [1, 2]
        )
