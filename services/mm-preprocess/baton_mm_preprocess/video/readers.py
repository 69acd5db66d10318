"""Reads video processors from a checkpoint's files, by class name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from baton.errors import ModelError
from baton_mm_preprocess.image.processor import read_processor
from baton_mm_preprocess.processors.colors import CLIP, HALF, read_colors
from baton_mm_preprocess.processors.readers.files import Files
from baton_mm_preprocess.processors.readers.patch_grids import limited_by_side, moonshot
from baton_mm_preprocess.video.clip_chunks import ClipChunks
from baton_mm_preprocess.video.clip_patches import ClipPatches
from baton_mm_preprocess.video.clip_tiles import ClipTiles
from baton_mm_preprocess.video.sampling import Sampling

VideoProcessor: TypeAlias = ClipPatches | ClipTiles | ClipChunks
VideoReader: TypeAlias = Callable[[Files, dict[str, Any]], VideoProcessor]

_CUBIC, _LANCZOS = 3, 1


def clip_patches(files: Files, fields: dict[str, Any]) -> VideoProcessor:
    """Qwen2-VL and similar models: limits are the areas in `size`, or Qwen2-VL's older
    `min_pixels`."""
    size, capped = fields["size"], fields.get("cap_pixels_per_frame")
    older = {} if fields.get("volume") else fields
    return ClipPatches(
        _sampling(fields, group=fields["temporal_patch_size"]),
        read_colors(fields),
        fields["resample"],
        min_pixels=older.get("min_pixels") or size["shortest_edge"],
        max_pixels=older.get("max_pixels") or size["longest_edge"],
        patch=fields["patch_size"],
        merge=fields["merge_size"],
        volume=fields.get("volume", False),
        max_tokens=fields["max_video_tokens"] if capped else 0,
    )


def clip_chunks(files: Files, fields: dict[str, Any]) -> VideoProcessor:
    """Kimi K2.5, with transformers' or Moonshot's names of settings."""
    rate = fields.get("fps") or 2
    if nested := fields.get("media_proc_cfg"):
        rate = fields.get("fps") or nested["sample_fps"]
        most = nested.get("in_patch_limit_each_frame") or nested["in_patch_limit"]
        fields = fields | moonshot(nested) | {"max_patches": most, "rule": "rounded"}
        limit, group = nested.get("in_patch_limit_video"), fields["temporal_patch_size"]
        if limit is not None and limit < group * most:
            raise ModelError("its in_patch_limit_video is below that of a chunk of frames")
    group, vision = fields["temporal_patch_size"], files.vision
    positions = vision.get("pos_emb_time", vision.get("init_pos_emb_time", 4))
    if group != positions:
        raise ModelError(f"it has chunks of {group} frames, and its encoder takes {positions}")
    return ClipChunks(_sampling(fields | {"fps": rate}, group=group), limited_by_side(fields))


def pooled_tiles(files: Files, fields: dict[str, Any]) -> VideoProcessor:
    """LLaVA-OneVision: pairs of rows and columns of embeddings are merged, a newline ends all."""
    steps = read_processor(_plain(fields), "SiglipImageProcessor")
    side = files.vision["image_size"] // files.vision["patch_size"]
    return ClipTiles(_sampling(fields), steps, math.ceil(side / 2) ** 2, tokens_per_clip=1)


def single_tiles(files: Files, fields: dict[str, Any]) -> VideoProcessor:
    """InternVL: every frame is one tile."""
    steps = read_processor(_plain(fields), "SiglipImageProcessor")
    return ClipTiles(_sampling(fields), steps, files.number("image_seq_length", 256))


def squared_tiles(files: Files, fields: dict[str, Any]) -> VideoProcessor:
    """SmolVLM: every frame is processed like an image that is not split."""
    tile = fields["max_image_size"]["longest_edge"]
    settings = fields.get("video_sampling") or {}
    defaults = {"fps": settings.get("fps", 1), "max_frames": settings.get("max_frames", 64)}
    longest = settings.get("video_size") or fields["size"]
    size = {"size": {"height": tile, "width": tile}}
    steps = read_processor(_plain(fields) | size, "SiglipImageProcessor")
    side = tile // files.vision.get("patch_size", 32)
    tokens = files.processor.get("image_seq_len") or side**2 // (
        files.config.get("scale_factor", 2) ** 2
    )
    return ClipTiles(_sampling(defaults | fields), steps, tokens, longest=longest["longest_edge"])


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    return {**fields, "do_pad": False, "image_processor_type": None}


def _sampling(fields: Mapping[str, Any], group: int = 1) -> Sampling:
    limits = {"min_frames": 4, "max_frames": 768, "max_duration": 300.0}
    limits |= {name: fields[name] for name in limits if fields.get(name)}
    return Sampling(
        fields["rule"],
        int(fields.get("num_frames") or 0),
        float(fields.get("fps") or 0),
        int(limits["min_frames"]),
        int(limits["max_frames"]),
        group,
        float(limits["max_duration"]),
    )


_QWEN = {
    "resample": _CUBIC,
    "size": {"shortest_edge": 128 * 28 * 28, "longest_edge": 28 * 28 * 768},
    "patch_size": 14,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "max_video_tokens": 128_000,
    "rule": "grouped",
    "fps": 2,
    **CLIP,
}
_TILE = {"resample": _CUBIC, "size": {"height": 384, "width": 384}, **CLIP}
READERS: dict[str, tuple[VideoReader, dict[str, Any]]] = {
    "Qwen2VLVideoProcessor": (clip_patches, _QWEN),
    "Qwen3VLVideoProcessor": (
        clip_patches,
        _QWEN
        | HALF
        | {"size": {"shortest_edge": 128 * 32 * 32, "longest_edge": 32 * 32 * 768}}
        | {"patch_size": 16, "max_video_tokens": 768, "rule": "spread", "volume": True},
    ),
    "Glm4vVideoProcessor": (
        clip_patches,
        _QWEN
        | {"size": {"shortest_edge": 112 * 112, "longest_edge": 28 * 28 * 2 * 30_000}}
        | {"rule": "seconds", "volume": True},
    ),
    "Kimi_K25VideoProcessor": (
        clip_chunks,
        {"patch_size": 14, "merge_size": 2, "temporal_patch_size": 4, "max_patches": 4096}
        | {"size": {"max_height": 512, "max_width": 512}, "rule": "uniform", **HALF},
    ),
    "LlavaOnevisionVideoProcessor": (
        pooled_tiles,
        _TILE | {"rule": "uniform", "num_frames": 32},
    ),
    "InternVLVideoProcessor": (single_tiles, _TILE | {"rule": "centered", "num_frames": 8}),
    "SmolVLMVideoProcessor": (
        squared_tiles,
        {"size": {"longest_edge": 4 * 364}, "max_image_size": {"longest_edge": 364}}
        | {"resample": _LANCZOS, "rule": "inner", **HALF},
    ),
}
"""Reader of a video processor's settings, and transformers' defaults. If transformers uses every
frame by default, the rate or number is the published one of the family."""


def video_processor_of(
    files: Files, settings: Mapping[str, Any], kind: str, chosen: Mapping[str, Any]
) -> VideoProcessor:
    """The video processor that a checkpoint describes, of `kind` if its files name none.

    Args:
        settings: the video processor's part of the files.
        chosen: `num_frames` or `fps` of the operator, which take precedence over those of the
            files.

    Raises:
        ModelError: it is not supported, or a field makes no sense.
    """
    named = str(settings.get("video_processor_type") or kind).removesuffix("Fast")
    if named not in READERS:
        raise ModelError(f"its video processor {named} is not supported, only {', '.join(READERS)}")
    reader, defaults = READERS[named]
    fields = defaults | {key: value for key, value in settings.items() if value is not None}
    if settings.get("fps") and not settings.get("num_frames"):
        fields["num_frames"] = 0
    if chosen:
        fields |= {"num_frames": 0, "fps": 0} | dict(chosen)
    try:
        return reader(files, fields)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise ModelError(f"its video processor has a field that makes no sense: {error}") from error
