"""Clips in chunks of a few frames; each chunk is one frame of the grid (Kimi K2.5,
arXiv:2602.02276)."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from baton_mm_preprocess.processors.limited_patches import LimitedPatches
from baton_mm_preprocess.video.decode import Clip
from baton_mm_preprocess.video.processed_clip import ProcessedClip, check_bytes, times_of
from baton_mm_preprocess.video.sampling import Sampling


class ClipChunks(msgspec.Struct, frozen=True, tag=True):
    """Pixels [patches, 3 * patch * patch], frame by frame, merged patches adjacent; the grid counts
    patches. The last chunk may be shorter."""

    sampling: Sampling
    frame: LimitedPatches
    """Processing of a frame."""

    def __call__(self, clip: Clip) -> ProcessedClip:
        """Process a clip. Raises `InvalidRequest` if it is damaged, or the tensor is too large."""
        indices = self.sampling(clip.num_frames, clip.fps)
        rows, columns = self.frame.grid(self.frame.size(clip.size))
        check_bytes(len(indices), (rows * self.frame.patch, columns * self.frame.patch))
        parts = [self.frame(image).pixels for image in clip.frames(indices)]
        chunks = math.ceil(len(parts) / self.sampling.group)
        return ProcessedClip(
            np.concatenate(parts),
            (len(parts), rows, columns),
            chunks * rows * columns // self.frame.merge**2,
            times_of(indices, clip.num_frames, clip.fps),
        )
