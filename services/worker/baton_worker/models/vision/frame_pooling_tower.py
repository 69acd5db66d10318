"""Towers whose videos become fewer frames: see `spec.VisionTower.pooled_frames`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from baton.protocol.media import Grid
from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.vision.grid import Size
from baton_worker.models.vision.stack import VisionStack
from baton_worker.models.vision.tower import VisionTower

_BASE = 10_000.0


class FramePoolingTower(VisionTower):
    """Patches of a few frames see one another, with sines of the number of their frame beside their
    positions; their states become one frame, the mean. An image is one frame, without sines."""

    def __init__(self, tower: spec.VisionTower, context: BuildContext) -> None:
        super().__init__(tower, context)
        self._most = tower.pooled_frames
        times = sines(self._most, tower.stack.hidden)
        self._times = times.to(context.device, context.dtype)

    def refusal(self, shape: Sequence[int], grid: Grid) -> str:
        """Why pixels of this shape cannot be encoded, or nothing."""
        if len(shape) != 2:
            return f"patches were expected, not pixels of shape {list(shape)}"
        return super().refusal(shape, grid)

    def num_tokens(self, shape: Sequence[int], grid: Grid) -> int:
        """Number of embeddings of an image or a video."""
        return sum(self._num_states(size) for _, size in self._chunks(grid))

    @torch.inference_mode()
    def encode_media(self, pixels: Sequence[Tensor], grids: Sequence[Grid]) -> list[Tensor]:
        """See `VisionTower.encode_media`."""
        chunks = [chunk for grid in grids for chunk in self._chunks(grid)]
        sizes = [size for frames, size in chunks for _ in range(frames)]
        x = self.embedding(torch.cat([self._patches(image) for image in pixels]), sizes)
        x = x + torch.cat([self._placed(frames, size) for frames, size in chunks])
        assert isinstance(self.stack, VisionStack)
        final, _ = self.stack.run(x, sizes, together=[frames for frames, _ in chunks])
        parts = torch.split(final, [frames * size[0] * size[1] for frames, size in chunks])
        means = [
            part.view(frames, -1, part.shape[-1]).float().mean(0).to(part.dtype)
            for part, (frames, _) in zip(parts, chunks, strict=True)
        ]
        out = self.projector(torch.cat(means), [size for _, size in chunks])
        counts = [
            self.num_tokens(image.shape, grid) for image, grid in zip(pixels, grids, strict=True)
        ]
        return list(torch.split(out, counts))

    def _chunks(self, grid: Grid) -> list[tuple[int, Size]]:
        """Frames, and rows and columns of patches, of what becomes one frame."""
        frames, rows, columns = grid
        firsts = range(0, frames, self._most)
        return [(min(self._most, frames - first), (rows, columns)) for first in firsts]

    def _placed(self, frames: int, size: Size) -> Tensor:
        """[frames * patches, hidden]: the embedding of each patch's frame number."""
        times = self._times[:frames] if frames > 1 else torch.zeros_like(self._times[:1])
        return times.repeat_interleave(size[0] * size[1], dim=0)


def sines(count: int, width: int) -> Tensor:
    """float32 [count, width]: sines, then cosines, of the first numbers (Vaswani et al. 2017,
    arXiv:1706.03762)."""
    rates = _BASE ** -(torch.arange(0, width, 2).float() / width)
    angles = torch.outer(torch.arange(count).float(), rates)
    return torch.cat((angles.sin(), angles.cos()), dim=1)
