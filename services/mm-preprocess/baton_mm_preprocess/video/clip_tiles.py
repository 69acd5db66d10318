"""Clips as frames of one size: LLaVA-OneVision (arXiv:2408.03326), InternVL, SmolVLM."""

from __future__ import annotations

import msgspec
import numpy as np
from PIL import Image

from baton_mm_preprocess.image.processor import Processor
from baton_mm_preprocess.processors.sizes import at_most, longest_edge, resized_by_axis, size_of
from baton_mm_preprocess.video.decode import Clip
from baton_mm_preprocess.video.processed_clip import ProcessedClip, check_bytes, times_of
from baton_mm_preprocess.video.sampling import Sampling

_LONGEST = 4096
"""Pixels of a side."""


class ClipTiles(msgspec.Struct, frozen=True, tag=True):
    """Pixels [frames, 3, height, width]; the grid is (frames, 0, 0)."""

    sampling: Sampling
    steps: Processor
    tokens_per_frame: int
    tokens_per_clip: int = 0
    """Embeddings after those of the frames."""
    longest: int = 0
    """Pixels of the longer side before a frame is resized to its final size; 0 for no such step
    (SmolVLM)."""

    def __call__(self, clip: Clip) -> ProcessedClip:
        """Process a clip. Raises `InvalidRequest` if it is damaged, or the tensor is too large."""
        indices = self.sampling(clip.num_frames, clip.fps)
        check_bytes(len(indices), self.steps.shape or clip.size)
        frames = np.stack([self.steps(self._sized(frame)) for frame in clip.frames(indices)])
        count = len(frames) * self.tokens_per_frame + self.tokens_per_clip
        times = times_of(indices, clip.num_frames, clip.fps)
        return ProcessedClip(frames, (len(frames), 0, 0), count, times)

    def _sized(self, frame: Image.Image) -> Image.Image:
        """Resize a frame to the size of a tile, so that `steps` only normalise it."""
        if self.longest:
            size = at_most(longest_edge(size_of(frame), self.longest), _LONGEST)
            frame = resized_by_axis(frame, size, self.steps.resample)
        return resized_by_axis(frame, self.steps.size or size_of(frame), self.steps.resample)
