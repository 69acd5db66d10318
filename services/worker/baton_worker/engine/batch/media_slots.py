"""The media of the sequences in a batch, by slot."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from baton.protocol import Media
from baton_worker.engine.batch.batch_rows import BatchRows
from baton_worker.engine.batch.plan_columns import Column
from baton_worker.engine.multimodal_input import MediaRows, SequenceMedia, prompt_media
from baton_worker.models.vision.tower import VisionTower


class MediaSlots:
    """Which placeholders of a step take which embeddings.

    Args:
        tower: the encoder of the model; None if it sees nothing.
    """

    def __init__(self, tower: VisionTower | None) -> None:
        self._tower, self._held = tower, dict[int, list[SequenceMedia]]()

    def enter(self, slot: int, media: Sequence[Media], tokens: npt.NDArray[np.int32]) -> str:
        """Take in the media of a sequence. Returns why they cannot be seen, or nothing."""
        if not media:
            return ""
        found = prompt_media(media, tokens, self._tower)
        if isinstance(found, str):
            return found
        self._held[slot] = found
        return ""

    def release(self, slots: Column) -> None:
        """Their sequences have gone."""
        for slot in slots.tolist():
            self._held.pop(slot, None)

    def rows(self, rows: BatchRows) -> tuple[MediaRows, ...]:
        """What the tokens of these rows need of the encoder."""
        if not self._held:
            return ()
        offsets = np.cumsum(rows.counts) - rows.counts
        columns = (rows.slots.tolist(), rows.starts.tolist(), rows.counts.tolist(), offsets)
        found = []
        for slot, start, count, offset in zip(*columns, strict=True):
            for item in self._held.get(slot, ()):
                first, end = np.searchsorted(item.positions, (start, start + count)).tolist()
                if first < end:
                    places = item.positions[first:end] - start + offset
                    found.append(MediaRows(item, first, places))
        return tuple(found)

    def needed(self, computed: Column) -> set[bytes]:
        """Digests of the items of which a placeholder is not computed yet; `computed` is by
        slot."""
        return {
            item.digest
            for slot, items in self._held.items()
            for item in items
            if item.positions[-1] >= computed[slot]
        }
