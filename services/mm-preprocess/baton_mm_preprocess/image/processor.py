"""Image processors: pixels to model input, following preprocessor_config.json.

The steps equal those of transformers' image processors on Pillow bit for bit: resize, center crop,
rescale, normalize.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from PIL import Image

from baton.errors import ModelError

Size = tuple[int, int]
"""Height and width."""


class Processor(msgspec.Struct, frozen=True):
    """Preprocessing steps of every image."""

    edge: int = 0
    """Pixels of the shorter side after resizing; 0 if `size` gives both."""
    size: Size | None = None
    """Size to resize to regardless of the aspect ratio; None for no such resize."""
    resample: int = 3
    """Number of a Pillow resampling filter."""
    crop: Size | None = None
    """Size of the center crop, padded with black."""
    scale: float = 1.0
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)

    @property
    def shape(self) -> Size | None:
        """Size of every tensor; None if it depends on the image."""
        return self.crop or self.size

    def __call__(self, image: Image.Image) -> npt.NDArray[np.float32]:
        """An image in RGB to float32 [3, height, width]."""
        if self.edge or self.size:
            height, width = self.size or _by_edge(image.size, self.edge)
            image = image.resize((width, height), Image.Resampling(self.resample))
        pixels = np.asarray(image)
        if self.crop is not None:
            pixels = center_crop(pixels, self.crop)
        scaled = (pixels.astype(np.float64) * self.scale).astype(np.float32)
        normed = (scaled - np.array(self.mean, np.float32)) / np.array(self.std, np.float32)
        return np.ascontiguousarray(normed.transpose(2, 0, 1), np.float32)


def _by_edge(size: tuple[int, int], edge: int) -> Size:
    """Size of an image of this width and height after its shorter side was resized to `edge`."""
    width, height = size
    if width <= height:
        return int(edge * height / width), edge
    return edge, int(edge * width / height)


def center_crop(pixels: npt.NDArray[np.uint8], size: Size) -> npt.NDArray[np.uint8]:
    """[H, W, C] to [*size, C]."""
    for axis, wanted in enumerate(size):
        pixels = _cut(pixels, axis, wanted)
    return pixels


def _cut(pixels: npt.NDArray[np.uint8], axis: int, size: int) -> npt.NDArray[np.uint8]:
    missing = size - pixels.shape[axis]
    if missing > 0:
        around = [(0, 0)] * pixels.ndim
        around[axis] = (math.ceil(missing / 2), missing // 2)
        return np.pad(pixels, around)
    first = -missing // 2
    return np.take(pixels, range(first, first + size), axis)


_CLIP: dict[str, Any] = {
    "size": {"shortest_edge": 224},
    "crop_size": {"height": 224, "width": 224},
    "do_center_crop": True,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
_SIGLIP: dict[str, Any] = {
    "size": {"height": 224, "width": 224},
    "do_center_crop": False,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
_BLIP: dict[str, Any] = _CLIP | {
    "size": {"height": 384, "width": 384},
    "do_center_crop": False,
}
_VIT: dict[str, Any] = _SIGLIP | {"resample": 2}
_CHAMELEON: dict[str, Any] = {
    "size": {"shortest_edge": 512},
    "crop_size": {"height": 512, "width": 512},
    "do_center_crop": True,
    "resample": 1,
    "rescale_factor": 0.0078,
    "image_mean": [1.0, 1.0, 1.0],
    "image_std": [1.0, 1.0, 1.0],
}
_COMMON: dict[str, Any] = {
    "do_resize": True,
    "resample": 3,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
}
KINDS: dict[str, dict[str, Any]] = {
    name: _COMMON | fields
    for names, fields in (
        (("CLIPImageProcessor", "CLIPImageProcessorFast", "CLIPFeatureExtractor"), _CLIP),
        (("SiglipImageProcessor", "SiglipImageProcessorFast"), _SIGLIP),
        (("BlipImageProcessor", "BlipImageProcessorFast"), _BLIP),
        (("ViTImageProcessor", "ViTImageProcessorFast"), _VIT),
        (("ChameleonImageProcessor", "ChameleonImageProcessorFast"), _CHAMELEON),
    )
    for name in names
}
"""Defaults of transformers for missing fields, by image processor."""
_REFUSED = ("do_pad", "do_reduce_labels", "do_thumbnail", "do_align_long_axis")
"""Unsupported steps of other processors."""


def read_processor(settings: Mapping[str, Any], kind: str) -> Processor:
    """The processor described by a file, of `kind` if the file names none.

    Raises:
        ModelError: it needs unsupported steps.
    """
    named = settings.get("image_processor_type") or settings.get("feature_extractor_type") or kind
    if named not in KINDS:
        raise ModelError(f"its image processor {named} is not supported, only {', '.join(KINDS)}")
    fields = KINDS[named] | {key: value for key, value in settings.items() if value is not None}
    if unsupported := [name for name in _REFUSED if fields.get(name)]:
        raise ModelError(f"its image processor asks for {', '.join(unsupported)}")
    try:
        return _processor(fields, square=not KINDS[named]["do_center_crop"])
    except (TypeError, ValueError, KeyError) as error:
        raise ModelError(f"its image processor has a field that makes no sense: {error}") from error


def _processor(fields: Mapping[str, Any], *, square: bool) -> Processor:
    edge, size = 0, None
    if fields["do_resize"]:
        edge, size = _resized(fields["size"], square=square)
    normal = bool(fields["do_normalize"])
    return Processor(
        edge=edge,
        size=size,
        resample=Image.Resampling(fields["resample"]),
        crop=height_and_width(fields["crop_size"]) if fields["do_center_crop"] else None,
        scale=float(fields["rescale_factor"]) if fields["do_rescale"] else 1.0,
        mean=channels(fields["image_mean"]) if normal else (0.0, 0.0, 0.0),
        std=channels(fields["image_std"]) if normal else (1.0, 1.0, 1.0),
    )


def _resized(size: Any, *, square: bool) -> tuple[int, Size | None]:
    """The shorter edge, or height and width. A plain number is one of them, or both."""
    if isinstance(size, int):
        size = {"height": size, "width": size} if square else {"shortest_edge": size}
    if set(size) == {"shortest_edge"}:
        return edge_of(size["shortest_edge"]), None
    if set(size) == {"height", "width"}:
        return 0, height_and_width(size)
    raise ValueError(f"size {dict(size)}")


def height_and_width(size: Any) -> Size:
    """Height and width; a plain number is both."""
    if isinstance(size, int):
        return edge_of(size), edge_of(size)
    return edge_of(size["height"]), edge_of(size["width"])


def edge_of(number: Any) -> int:
    """A number of pixels of a side. Raises `ValueError`."""
    if type(number) is not int or not 1 <= number <= 4096:
        raise ValueError(f"{number!r} pixels")
    return number


def channels(numbers: Any) -> tuple[float, ...]:
    """One number per channel; a plain number is that of all."""
    channels = [numbers] * 3 if isinstance(numbers, int | float) else list(numbers)
    if len(channels) != 3:
        raise ValueError(f"{len(channels)} channels")
    return tuple(float(number) for number in channels)
