"""Normalisation of pixels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from baton_mm_preprocess.image.processor import channels

IMAGENET: dict[str, Any] = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
HALF: dict[str, Any] = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
CLIP: dict[str, Any] = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}


class Colors(msgspec.Struct, frozen=True):
    """(bytes * scale - mean) / std."""

    scale: float = 1.0
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)

    def __call__(
        self, pixels: npt.NDArray[np.uint8] | npt.NDArray[np.float32]
    ) -> npt.NDArray[np.float32]:
        """Bytes [height, width, 3], or means of bytes, to float32 [3, height, width]."""
        scaled = (pixels.astype(np.float64) * self.scale).astype(np.float32)
        normed = (scaled - np.array(self.mean, np.float32)) / np.array(self.std, np.float32)
        return np.ascontiguousarray(normed.transpose(2, 0, 1), np.float32)


def read_colors(fields: Mapping[str, Any]) -> Colors:
    """Read preprocessor_config.json; `image_mean` and `image_std` are required."""
    scale = float(fields.get("rescale_factor", 1 / 255)) if fields.get("do_rescale", True) else 1.0
    if not fields.get("do_normalize", True):
        return Colors(scale)
    return Colors(scale, channels(fields["image_mean"]), channels(fields["image_std"]))
