"""Encoder step: embeddings for the placeholders of a step, before the model runs."""

from __future__ import annotations

import time
from collections.abc import Container
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from baton_worker.engine.batch.step_inputs import StepInputs
from baton_worker.engine.multimodal.encoder_cache import EncoderCache
from baton_worker.engine.multimodal_input import SequenceMedia
from baton_worker.layers.media_embeddings import MediaEmbeddings
from baton_worker.models.vision.media_tower import MediaTower, is_finite

NOT_FINITE = "its embeddings are not finite"
"""The error of an item."""


class EncoderWork(NamedTuple):
    """Encoder statistics of one step."""

    num_items: int = 0
    num_tokens: int = 0
    """Embeddings of all items."""
    seconds: float = 0.0


class EncoderStep:
    """Encodes the media that a step needs and the cache lacks, in one batch."""

    def __init__(self, tower: MediaTower, cache: EncoderCache, device: torch.device) -> None:
        self.tower, self._cache, self._device = tower, cache, device
        self.last = EncoderWork()
        """Encoder statistics of the last step."""
        self.num_encoded = 0
        """Items encoded here so far; those found in the cache do not count."""
        self._broken = set[bytes]()

    def __call__(self, inputs: StepInputs, pinned: Container[bytes]) -> StepInputs:
        """The inputs with `embeddings`, or with tokens of images in the place of placeholders.

        Args:
            pinned: digests that sequences need after this step.
        """
        self.last, self._broken = EncoderWork(), set()
        if not inputs.media:
            return inputs
        self._encode({rows.item.digest: rows.item for rows in inputs.media})
        parts = [
            self._cache.get(rows.item.digest)[rows.first : rows.first + len(rows.places)]
            for rows in inputs.media
        ]
        places = np.concatenate([rows.places for rows in inputs.media])
        embeddings = torch.cat(parts)
        self._cache.discard(self._broken)
        self._cache.trim(pinned)
        if not embeddings.is_floating_point():
            tokens = inputs.tokens.copy()
            tokens[places] = embeddings[:, 0].cpu().numpy()
            return replace(inputs, tokens=tokens)
        on_device = torch.from_numpy(places).to(self._device)
        return replace(inputs, embeddings=MediaEmbeddings(on_device, embeddings, self.tower.added))

    def broken_slots(self, inputs: StepInputs) -> list[int]:
        """Slots of the step with an item whose embeddings are not finite; zeros stood for them, so
        that no number of another row can depend on them."""
        broken = [rows for rows in inputs.media if rows.item.digest in self._broken]
        return self._slots(inputs, [int(rows.places[0]) for rows in broken])

    def _slots(self, inputs: StepInputs, places: list[int]) -> list[int]:
        """Slots of the tokens at these places on the flat token axis."""
        rows = np.searchsorted(np.cumsum(inputs.rows.counts), places, side="right")
        return [int(slot) for slot in inputs.rows.slots[rows]]

    def adopt(self, digest: bytes, embeddings: Tensor) -> None:
        """Take the embeddings [n, width] of an item that an encode worker has encoded."""
        self._cache.put(digest, embeddings.to(self._device))

    def _encode(self, items: dict[bytes, SequenceMedia]) -> None:
        missing = [item for digest, item in items.items() if digest not in self._cache]
        for item in missing:
            if item.is_embeds:
                given = torch.from_numpy(item.pixels.copy())
                self._keep(item.digest, given.to(self._device, self.tower.dtype))
        missing = [item for item in missing if not item.is_embeds]
        if not missing:
            return
        begin = time.perf_counter()
        pixels = [torch.from_numpy(item.pixels.copy()) for item in missing]
        encoded = self.tower.encode_media(pixels, [item.grid for item in missing])
        for item, embeddings in zip(missing, encoded, strict=True):
            # A copy: a view would keep the embeddings of all the others in memory.
            self._keep(item.digest, embeddings.clone())
        self.num_encoded += len(missing)
        seconds, tokens = time.perf_counter() - begin, sum(map(len, encoded))
        self.last = EncoderWork(len(missing), tokens, seconds)

    def _keep(self, digest: bytes, embeddings: Tensor) -> None:
        if not is_finite(embeddings):
            self._broken.add(digest)
            embeddings.zero_()
        self._cache.put(digest, embeddings)
