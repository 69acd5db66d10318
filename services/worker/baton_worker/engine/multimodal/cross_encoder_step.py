"""Encoder step of a model whose tokens attend to media: the KV of their states get pages."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from baton_worker.engine.batch.step_inputs import StepInputs
from baton_worker.engine.multimodal.alignment_step import attention_weights
from baton_worker.engine.multimodal.cross_page_table import CrossPageTable, StatePages
from baton_worker.engine.multimodal.encoder_cache import EncoderCache
from baton_worker.engine.multimodal.encoder_step import EncoderStep, EncoderWork
from baton_worker.engine.multimodal_input import SeenMedia
from baton_worker.layers.attention.cross_states import CrossInputs, CrossWrite
from baton_worker.layers.media_embeddings import MediaEmbeddings
from baton_worker.models.vision.media_tower import MediaTower


class CrossEncoderStep(EncoderStep):
    """Encodes the media that a step sees and that neither pages nor the cache hold.

    Pages are a cache, too: what they lack is made again from states, and these from pixels, so a
    sequence that starts anywhere sees the same.
    """

    def __init__(
        self, tower: MediaTower, cache: EncoderCache, device: torch.device, table: CrossPageTable
    ) -> None:
        super().__init__(tower, cache, device)
        self._table = table
        empty = torch.zeros((0, tower.width), dtype=tower.dtype, device=device)
        self._nothing = torch.zeros(0, dtype=torch.int64, device=device), empty

    def __call__(self, inputs: StepInputs, pinned: Container[bytes]) -> StepInputs:
        """The inputs with what their tokens see as `embeddings.cross`."""
        self.last, self._broken = EncoderWork(), set()
        if not inputs.seen:
            return inputs
        lacking = {some.key: some for some in inputs.seen if some.key not in self._table}
        self._encode({item.digest: item for some in lacking.values() for item in some.items})
        writes = tuple(self._write(some, pinned) for some in lacking.values())
        cross = self._cross(inputs.seen, writes)
        cross = cross._replace(weights=attention_weights(inputs, cross))
        media = MediaEmbeddings(*self._nothing, cross=cross)
        # The next step may write to these pages, and this one still reads them.
        broken = [some.key for some in inputs.seen if self._broken.intersection(some.key)]
        self._table.drop(broken)
        self._cache.discard(self._broken)
        self._cache.trim(_Without(pinned, self._table))
        return replace(inputs, embeddings=media)

    def broken_slots(self, inputs: StepInputs) -> list[int]:
        """See `EncoderStep`."""
        broken = [some for some in inputs.seen if self._broken.intersection(some.key)]
        return self._slots(inputs, [int(some.places[0]) for some in broken])

    def _write(self, some: SeenMedia, pinned: Container[bytes]) -> CrossWrite:
        states = torch.cat([self._cache.get(item.digest) for item in some.items])
        pages = self._table.assign(some.key, len(states), pinned).pages
        return CrossWrite(torch.tensor(pages), states)

    def _cross(self, media: tuple[SeenMedia, ...], writes: tuple[CrossWrite, ...]) -> CrossInputs:
        states = {some.key: self._table.get(some.key) for some in media}
        number = {key: row for row, key in enumerate(states)}
        places = np.concatenate([some.places for some in media])
        items = np.repeat([number[s.key] for s in media], [len(s.places) for s in media])
        order = np.argsort(places)
        return CrossInputs(
            torch.from_numpy(places[order]).to(self._device),
            torch.from_numpy(items[order]),
            _tables(list(states.values())),
            torch.tensor([pages.num_states for pages in states.values()]),
            writes,
            self._table.num_pages,
        )


class _Without(Container[bytes]):
    """Pinned media without pages."""

    def __init__(self, pinned: Container[bytes], table: CrossPageTable) -> None:
        self._pinned, self._table = pinned, table

    def __contains__(self, digest: object) -> bool:
        return digest in self._pinned and not self._table.shows(digest)


def _tables(states: list[StatePages]) -> Tensor:
    """int32 [items, pages of the longest]."""
    tables = torch.zeros(
        (len(states), max(len(pages.pages) for pages in states)), dtype=torch.int32
    )
    for row, pages in zip(tables, states, strict=True):
        row[: len(pages.pages)] = torch.tensor(pages.pages)
    return tables
