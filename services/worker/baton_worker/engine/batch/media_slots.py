"""The media of the sequences in a batch, by slot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from baton.protocol import Media
from baton_worker.engine.batch.batch_rows import BatchRows
from baton_worker.engine.batch.plan_columns import Column, PlanError
from baton_worker.engine.multimodal.mrope import AxisPositions
from baton_worker.engine.multimodal.rope_index import RULES
from baton_worker.engine.multimodal_input import MediaRows, SeenMedia, SequenceMedia, prompt_media
from baton_worker.models.vision.media_tower import MediaTower


class MediaSlots:
    """Assigns media embeddings to the placeholders of a step.

    Args:
        tower: the image encoder of the model; None for a text model.
        axes: position axes of each token.
    """

    def __init__(self, tower: MediaTower | None, axes: int = 1) -> None:
        self._tower, self._held = tower, dict[int, list[SequenceMedia]]()
        self._axes, self._placed = axes, dict[int, AxisPositions]()

    def enter(
        self,
        slot: int,
        media: Sequence[Media],
        tokens: npt.NDArray[np.int32],
        computed: int = 0,
    ) -> str:
        """Enter the media of a sequence. Returns why they cannot be used, or an empty string.

        Args:
            computed: number of its tokens with computed KV.
        """
        if not media:
            return ""
        items = prompt_media(media, tokens, self._tower, computed)
        if isinstance(items, str):
            return items
        self._held[slot] = items
        return self._place(slot)

    def _place(self, slot: int) -> str:
        """Compute positions on several axes, if the model has them. Returns the reason of a
        failure."""
        if self._axes == 1:
            return ""
        assert self._tower is not None
        if any(item.is_embeds for item in self._held[slot]):
            return "its positions follow from the size of an image, which embeddings do not have"
        rule = RULES[self._tower.rope_index]
        try:
            self._placed[slot] = rule(self._held[slot], self._axes, self._tower)
        except ValueError as error:
            return str(error)
        return ""

    def release(self, slots: Column) -> None:
        """Release these slots."""
        for slot in slots.tolist():
            self._held.pop(slot, None)
            self._placed.pop(slot, None)

    def rows(self, rows: BatchRows) -> tuple[MediaRows, ...]:
        """Encoder outputs that the tokens of these rows need."""
        if not self._held or self._tower is None or self._tower.cross:
            return ()
        offsets = np.cumsum(rows.counts) - rows.counts
        columns = (rows.slots.tolist(), rows.starts.tolist(), rows.counts.tolist(), offsets)
        media_rows = []
        for slot, start, count, offset in zip(*columns, strict=True):
            for item in self._held.get(slot, ()):
                first, end = np.searchsorted(item.positions, (start, start + count)).tolist()
                if first < end:
                    places = item.positions[first:end] - start + offset
                    media_rows.append(MediaRows(item, first, places))
        return tuple(media_rows)

    def seen(self, rows: BatchRows) -> tuple[SeenMedia, ...]:
        """What of media the tokens of these rows attend to: nothing before the first item, then the
        last one before them, or the last run of items without tokens between them."""
        if not self._held or self._tower is None or not self._tower.cross:
            return ()
        seen_media, offset = list[SeenMedia](), 0
        for slot, start, count in zip(*map(np.ndarray.tolist, _columns(rows)), strict=True):
            for first, end, items in _visible_spans(self._held.get(slot, ()), start, start + count):
                places = np.arange(first, end) + (offset - start)
                seen_media.append(SeenMedia(items, places))
            offset += count
        return tuple(seen_media)

    def last_keys(self, rows: BatchRows, indices: Column) -> Column | None:
        """The last position that each of the tokens with these `indices` [T] sees: its own, or the
        end of the span of an image that it is in; None if all see their own.

        Raises:
            PlanError: a step ends within a span.
        """
        if self._tower is None or not self._tower.bidirectional:
            return None
        last, offset, any_span = indices.copy(), 0, False
        for slot, start, count in zip(*map(np.ndarray.tolist, _columns(rows)), strict=True):
            for first, end in _spans(self._held.get(slot, ()), start, start + count):
                if end > start + count:
                    raise PlanError(f"A step ends at token {start + count}, within an image.")
                at = offset - start
                last[at + max(first, start) : at + end], any_span = end - 1, True
            offset += count
        return last if any_span else None

    def positions(self, rows: BatchRows, indices: Column) -> Column:
        """Positions of the tokens of these rows, whose `indices` in their sequences are int64 [T].

        Returns:
            int64 [T], or [axes, T] where those of a token differ.
        """
        slots = rows.slots.tolist()
        placed = [self._placed.get(slot) for slot in slots] if self._placed else []
        if not any(placed):
            return indices
        starts = zip(placed, rows.starts.tolist(), strict=True)
        inside = [at is not None and start < at.length for at, start in starts]
        out = np.tile(indices, (self._axes, 1)) if any(inside) else indices.copy()
        ends = np.cumsum(rows.counts).tolist()
        for at, count, end in zip(placed, rows.counts.tolist(), ends, strict=True):
            if at is not None:
                out[..., end - count : end] = at.of(indices[end - count : end])
        return out

    def needed(self, computed: Column) -> set[bytes]:
        """Digests of the items of which a placeholder is not computed yet, or to which all later
        tokens attend; `computed` is by slot."""
        lasting = self._tower is not None and self._tower.cross
        return {
            item.digest
            for slot, items in self._held.items()
            for item in items
            if lasting or item.positions[-1] >= computed[slot]
        }


def _columns(rows: BatchRows) -> tuple[Column, Column, Column]:
    return rows.slots, rows.starts, rows.counts


def _spans(items: Sequence[SequenceMedia], start: int, stop: int) -> Iterator[tuple[int, int]]:
    """The spans of these items that have tokens in [start, stop)."""
    for item in items:
        for first, end in item.spans.tolist():
            if first < stop and end > start:
                yield first, end


def _visible_spans(
    items: Sequence[SequenceMedia], start: int, stop: int
) -> Iterator[tuple[int, int, tuple[SequenceMedia, ...]]]:
    """Runs [first, end) of the tokens [start, stop), and the items that each run sees."""
    together = tuple[SequenceMedia, ...]()
    for number, item in enumerate(items):
        first = int(item.positions[0])
        joined = together and first == together[-1].positions[-1] + 1
        together = (*together, item) if joined else (item,)
        later = items[number + 1 : number + 2]
        end = int(later[0].positions[0]) if later else stop
        if (begin := max(first, start)) < (last := min(end, stop)):
            yield begin, last, together
