"""One preprocessed clip, the input of a vision tower."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from baton.errors import InvalidRequest
from baton.protocol.media import MAX_PIXEL_BYTES
from baton_mm_preprocess.processors.processed_image import Grid
from baton_mm_preprocess.processors.sizes import Size


class ClipTimes(msgspec.Struct, frozen=True):
    """Times of a clip's frames."""

    frames: tuple[float, ...]
    """Seconds from the beginning of the clip, per sampled frame."""
    duration: float
    """Duration in seconds."""
    seconds_per_grid: float
    """Seconds between two frames of the grid, on average."""


@dataclass(frozen=True, slots=True)
class ProcessedClip:
    """Tensor for the worker, and the resulting number of embeddings."""

    pixels: npt.NDArray[np.float32]
    """[patches, channels] or [frames, 3, height, width], depending on the tower."""
    grid: Grid
    """Frames, rows and columns of patches, or (frames, 0, 0) for frames of one tile each."""
    num_tokens: int
    times: ClipTimes


def times_of(indices: list[int], total: int, fps: float, group: int = 1) -> ClipTimes:
    """Times of these frames of a clip of `total` frames; `group` of them form one in the grid."""
    sampled = len(indices) / total * fps
    return ClipTimes(tuple(i / fps for i in indices), total / fps, group / sampled)


def check_bytes(num_frames: int, size: Size) -> None:
    """Raise `InvalidRequest` if this number of frames of this size does not fit into a message."""
    if 4 * 3 * num_frames * size[0] * size[1] > MAX_PIXEL_BYTES:
        raise InvalidRequest(
            f"The video is {num_frames} frames of {size[1]} x {size[0]} pixels as the model takes "
            f"it, more than {MAX_PIXEL_BYTES >> 20} MiB. Send a shorter or smaller one, or let the "
            "server take fewer frames (--media-io-kwargs) or smaller ones (--mm-processor-kwargs).",
            code="video_too_large",
        )
