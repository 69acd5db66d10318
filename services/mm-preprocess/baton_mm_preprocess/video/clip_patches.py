"""Clips of any size as a sequence of patches in space and time: Qwen2-VL (arXiv:2409.12191) and
similar models."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from baton_mm_preprocess.processors.colors import Colors
from baton_mm_preprocess.processors.patches import patchify_frames
from baton_mm_preprocess.processors.sizes import Size, at_least, pixels_of, resized_by_axis, smart
from baton_mm_preprocess.video.decode import Clip
from baton_mm_preprocess.video.processed_clip import ProcessedClip, check_bytes, times_of
from baton_mm_preprocess.video.sampling import Sampling


class ClipPatches(msgspec.Struct, frozen=True, tag=True):
    """Pixels [patches, 3 * group * patch * patch], frame by frame of the grid, merged patches
    adjacent; the grid counts patches. The last group is padded with the last frame."""

    sampling: Sampling
    colors: Colors
    resample: int
    min_pixels: int
    max_pixels: int
    patch: int = 14
    merge: int = 2
    volume: bool = False
    """Whether the limits count the pixels of all frames (Qwen3-VL, GLM-4.1V) instead of one."""
    max_tokens: int = 0
    """With `cap_pixels_per_frame`: tokens of all frames, or of one with `volume`; else 0."""

    def __call__(self, clip: Clip) -> ProcessedClip:
        """Process a clip. Raises `InvalidRequest` if it is damaged, or the tensor is too large."""
        group = self.sampling.group
        indices = self.sampling(clip.num_frames, clip.fps)
        size = self.size(len(indices), clip.size)
        check_bytes(len(indices), size)
        frames = [pixels_of(resized_by_axis(f, size, self.resample)) for f in clip.frames(indices)]
        frames += frames[-1:] * (-len(frames) % group)
        parts = [
            patchify_frames(np.stack(list(map(self.colors, some))), self.patch, self.merge)
            for some in (frames[first : first + group] for first in range(0, len(frames), group))
        ]
        rows, columns = size[0] // self.patch, size[1] // self.patch
        times = times_of(indices, clip.num_frames, clip.fps, group)
        grid = (len(parts), rows, columns)
        return ProcessedClip(np.concatenate(parts), grid, math.prod(grid) // self.merge**2, times)

    def size(self, num_frames: int, size: Size) -> Size:
        """Size of every frame of a clip whose frames have this size."""
        factor, group = self.patch * self.merge, self.sampling.group
        most = self._most(num_frames, factor)
        if not self.volume:
            return smart(size, factor, self.min_pixels, most)
        num_frames = max(num_frames, group)
        whole = round(num_frames / group) * group
        return _smart_volume(
            at_least(size, factor), factor, (num_frames, whole), self.min_pixels, most
        )

    def _most(self, num_frames: int, factor: int) -> int:
        if not self.max_tokens:
            return self.max_pixels
        floor = int(self.min_pixels * 1.05)
        if self.volume:
            share = min(self.max_tokens * factor**2, self.max_pixels // num_frames)
            return max(share, floor) * num_frames
        total = int(self.max_tokens * factor**2 * 0.9)
        return max(min(self.max_pixels, total * self.sampling.group // num_frames), floor)


def _smart_volume(
    size: Size, factor: int, frames: tuple[int, int], min_pixels: int, max_pixels: int
) -> Size:
    """As `smart`, for limits of all frames; `frames` are their number and that of complete
    groups."""
    count, whole = frames
    tall, wide = (round(side / factor) * factor for side in size)
    volume = count * size[0] * size[1]
    if whole * tall * wide > max_pixels:
        beta = math.sqrt(volume / max_pixels)
        tall, wide = (max(factor, math.floor(side / beta / factor) * factor) for side in size)
    elif whole * tall * wide < min_pixels:
        beta = math.sqrt(min_pixels / volume)
        tall, wide = (math.ceil(side * beta / factor) * factor for side in size)
    return tall, wide
