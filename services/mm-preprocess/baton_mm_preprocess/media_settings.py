"""Media settings in vLLM's JSON format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias

import msgspec
from pydantic import AfterValidator

MODALITIES = ("image", "video", "audio")
_CHOICES = ("num_frames", "fps")
_PARTS = {"images_kwargs": "image", "videos_kwargs": "video"}
_SOUND = "use_audio_in_video"
_FIELDS = frozenset(
    (
        *("size", "min_pixels", "max_pixels", "resample", "crop_size", "do_center_crop"),
        *("do_resize", "do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std"),
        *("image_grid_pinpoints", "min_patches", "max_patches", "crop_to_patches"),
        *("do_image_splitting", "max_image_size", "do_pan_and_scan", "in_token_limit"),
        *("pan_and_scan_min_crop_size", "pan_and_scan_max_num_crops"),
        *("pan_and_scan_min_ratio_to_activate", "num_frames", "fps", "min_frames", "max_frames"),
        *("max_duration", "cap_pixels_per_frame", "max_video_tokens", "video_sampling"),
    )
)
"""Processor fields that may be overridden."""


@dataclass(frozen=True)
class ProcessorKwargs:
    """The operator's overrides of a checkpoint's processors."""

    image: Mapping[str, Any] = field(default_factory=dict)
    video: Mapping[str, Any] = field(default_factory=dict)
    frames: Mapping[str, Any] = field(default_factory=dict)
    """`num_frames` or `fps` of every video."""
    sound: bool = False
    """Whether the sound of a video is passed to the model too."""


def limits(setting: str) -> dict[str, int]:
    """Maximum items of a modality in one request, from `limit_mm_per_prompt`: '{"image": 4}', or as
    '{"image": {"count": 4}}'. Raises `ValueError`."""
    limits = {}
    for modality, value in _object(setting).items():
        count = value.get("count") if isinstance(value, dict) else value
        if modality not in MODALITIES or type(count) is not int or count < 0:
            raise ValueError(f"expected numbers of {', '.join(MODALITIES)}, not {setting}")
        limits[modality] = count
    return limits


def frames(setting: str) -> dict[str, Any]:
    """`num_frames` or `fps` of `media_io_kwargs`: '{"video": {"num_frames": 16}}'. Raises
    `ValueError`."""
    fields = _object(setting)
    chosen = fields.get("video", {})
    fits = set(fields) <= {"video"} and isinstance(chosen, dict) and set(chosen) <= {*_CHOICES}
    numbers = isinstance(chosen, dict) and all(
        type(value) in (int, float) and value > 0 for value in chosen.values()
    )
    if not fits or not numbers or len(chosen) > 1:
        raise ValueError('expected {"video": {"num_frames": N}} or {"video": {"fps": N}}')
    return dict(chosen)


def processor_kwargs(setting: str) -> tuple[dict[str, Any], dict[str, Any], bool]:
    """Fields of the image and the video processor, from `mm_processor_kwargs`: for both, or in
    "images_kwargs" and "videos_kwargs"; and whether "use_audio_in_video" is set. Raises
    `ValueError`."""
    fields = _object(setting)
    if not isinstance(sound := fields.pop(_SOUND, False), bool):
        raise ValueError(f"expected true or false as {_SOUND}")
    parts = {kind: fields.pop(name, {}) for name, kind in _PARTS.items()}
    for part in (fields, *parts.values()):
        if not isinstance(part, dict):
            raise ValueError(f"expected objects in {', '.join(_PARTS)}")
        if unknown := sorted(set(part) - _FIELDS):
            known = sorted(_FIELDS | {_SOUND})
            raise ValueError(f"{', '.join(unknown)} cannot be set; known: {known}")
    return fields | parts["image"], fields | parts["video"], sound


def _object(setting: str) -> dict[str, Any]:
    if not setting:
        return {}
    try:
        return msgspec.json.decode(setting, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ValueError(f"expected a JSON object: {error}") from error


def _checked(read: Any) -> AfterValidator:
    def check(setting: str) -> str:
        read(setting)
        return setting

    return AfterValidator(check)


LimitJson: TypeAlias = Annotated[str, _checked(limits)]
MediaIoJson: TypeAlias = Annotated[str, _checked(frames)]
ProcessorJson: TypeAlias = Annotated[str, _checked(processor_kwargs)]
