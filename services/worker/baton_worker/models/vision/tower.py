"""Vision towers: pixels to embeddings in the place of image tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from baton.protocol.media import Grid
from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.norm import norm
from baton_worker.layers.patch_embedding import CHANNELS, Patches
from baton_worker.layers.pooler_head import Dense
from baton_worker.models.encoder import Stack, blocks_of
from baton_worker.spec.names import Names


class VisionTower(nn.Module):
    """A stack over patches of images of one size, and its projector: see `spec.VisionTower`."""

    def __init__(self, tower: spec.VisionTower, site: BuildContext) -> None:
        super().__init__()
        stack = tower.stack
        # Adapters are of the tokens of a step, which an image has none of.
        site = replace(site, name=Names(stack.tensors.names), adapters=None)
        self.embedding = Patches(stack.patches, stack.hidden, site)
        self.embedding_norm = None
        if stack.embedding_norm is not None:
            self.embedding_norm = norm(stack.embedding_norm, stack.hidden, "embedding_norm", site)
        self.stack = Stack(stack, blocks_of(stack, site), site)
        self.projector = nn.Sequential(*(Dense(dense, site) for dense in tower.projector))
        self.image_token, self._count = tower.image_token, stack.patches.count
        self._first = int(tower.drops_class_token)
        self._shape = (CHANNELS, stack.patches.image, stack.patches.image)
        self._dtype, self._device = site.dtype, site.device

    def refusal(self, shape: Sequence[int], grid: Grid) -> str:
        """Why pixels of this shape cannot be encoded, or nothing."""
        if tuple(shape) == self._shape:
            return ""
        return f"an image of shape {list(self._shape)} was expected, not {list(shape)}"

    def num_tokens(self, grid: Grid) -> int:
        """Number of embeddings of an image."""
        return self._count - self._first

    @property
    def progress(self) -> int:
        """Number of layers run since construction, for watchdogs."""
        return self.stack.progress

    @torch.inference_mode()
    def encode_images(self, pixels: Sequence[Tensor], grids: Sequence[Grid]) -> list[Tensor]:
        """float32 [3, image, image] each to [num_tokens, hidden] each, in the decoder's dtype."""
        x = self._states(torch.stack(tuple(pixels)).to(self._device, self._dtype))
        kept = x.view(len(pixels), self._count, -1)[:, self._first :]
        projected: Tensor = self.projector(kept.flatten(0, 1))
        return list(projected.view(len(pixels), self._count - self._first, -1))

    def _states(self, pixels: Tensor) -> Tensor:
        """[R, 3, image, image] to [R * count, hidden]."""
        x: Tensor = self.embedding(pixels)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        positions = torch.arange(self._count, device=x.device).repeat(len(pixels))
        states: Tensor = self.stack(x, positions, [self._count] * len(pixels))
        return states
