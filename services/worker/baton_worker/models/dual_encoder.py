"""Dual encoders: a text and an image encoder with separate vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from baton_worker import spec
from baton_worker.layers.attention_pool import AttentionPool
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.norm import norm
from baton_worker.layers.patch_embedding import CHANNELS, Patches
from baton_worker.layers.pooler_head import Dense
from baton_worker.models.encoder import EncoderModel, Stack, blocks_of
from baton_worker.spec.names import Names


class VisionTower(nn.Module):
    """Images to vectors: see `spec.Vision`."""

    def __init__(self, vision: spec.Vision, context: BuildContext) -> None:
        super().__init__()
        self._count = vision.patches.count
        self.embedding = Patches(vision.patches, vision.hidden, context)
        self.embedding_norm = self.pool = self.projection = None
        if vision.embedding_norm is not None:
            self.embedding_norm = norm(
                vision.embedding_norm, vision.hidden, "embedding_norm", context
            )
        self.stack = Stack(vision, blocks_of(vision, context), context)
        if vision.pool is not None:
            names = Names(vision.pool.names)
            self.pool = AttentionPool(vision.pool, vision.hidden, replace(context, name=names))
        if vision.projection is not None:
            self.projection = Dense(vision.projection, context)

    def forward(self, pixels: Tensor) -> Tensor:
        """[R, 3, image, image] to [R, width]."""
        x: Tensor = self.embedding(pixels)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        positions = torch.arange(self._count, device=x.device).repeat(pixels.shape[0])
        x = self.stack(x, positions, [self._count] * pixels.shape[0])
        x = x.view(pixels.shape[0], self._count, -1)
        x = x[:, 0] if self.pool is None else self.pool(x)
        out: Tensor = x if self.projection is None else self.projection(x)
        return out


class DualEncoderModel(EncoderModel):
    """A text encoder with an image encoder."""

    def __init__(
        self, towers: spec.DualEncoder, blocks: Sequence[nn.Module], context: BuildContext
    ) -> None:
        super().__init__(towers, blocks, context)
        self._end, self._padding = towers.end, towers.padding
        self.projection = Dense(towers.projection, context)
        names = Names(towers.vision.tensors.names)
        self.vision = VisionTower(towers.vision, replace(context, name=names))
        side = towers.vision.patches.image
        self.image_shape = (CHANNELS, side, side)
        """Pixel shape of one image."""

    @torch.inference_mode()
    def embed_texts(self, texts: Sequence[Tensor]) -> Tensor:
        """One vector per text, [R, width]; a text is its tokens, int64 [n]."""
        filled = [self._filled(text) for text in texts]
        counts = [len(text) for text in filled]
        tokens = torch.cat(filled)
        positions = torch.cat([torch.arange(count, device=tokens.device) for count in counts])
        states = self.encode(tokens, positions, counts, torch.zeros_like(tokens))
        parts = torch.split(states, counts)
        chosen = [part[self._place(text)] for part, text in zip(parts, filled, strict=True)]
        vectors: Tensor = self.projection(torch.stack(chosen))
        return vectors

    @torch.inference_mode()
    def embed_images(self, pixels: Tensor) -> Tensor:
        """One vector per image, [R, *image_shape] to [R, width]."""
        vectors: Tensor = self.vision(pixels.to(self.dtype))
        return vectors

    def _filled(self, text: Tensor) -> Tensor:
        """A text with padding."""
        missing = 0 if self._padding is None else self._padding.length - len(text)
        if self._padding is None or missing <= 0:
            return text
        return torch.cat((text, text.new_full((missing,), self._padding.id)))

    def _place(self, text: Tensor) -> int:
        """Index of the token whose state represents the text."""
        if self._end is None:
            return -1
        if self._end < 0:
            return int(text.argmax())
        places = (text == self._end).nonzero()
        return int(places[0]) if len(places) else -1


def build_dual_encoder(towers: spec.DualEncoder, context: BuildContext) -> DualEncoderModel:
    """The modules of both encoders with uninitialised parameters. `ModelError` as from `build`."""
    context = replace(context, name=Names(towers.tensors.names))
    return DualEncoderModel(towers, blocks_of(towers, context), context)
