"""Pages that a failed sequence may have left with NaN or infinity in them."""

from __future__ import annotations

from baton_worker.engine.input_batch import BatchRows, InputBatch
from baton_worker.kv_cache import KVCache


class NanQuarantine:
    """Keeps one sequence's broken numbers from the next owner of its pages.

    Attention reads whole pages and masks what a sequence has not written, but a masked NaN is a
    NaN still. So a suspect page is cleared when someone is about to write it from its start; a
    suspect page that is shared as a prefix is not touched, and whoever reads it fails loudly.
    """

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self._suspect: set[int] = set()

    def add(self, batch: InputBatch, slot: int) -> None:
        """Suspect all pages of a slot."""
        self._suspect.update(batch.tables[:, slot, : batch.num_pages[slot]].flatten().tolist())

    def copied(self, batch: InputBatch, slot: int) -> None:
        """A sequence has entered whose first page to write is a copy up to where it starts: what
        lies behind that may be of a failed one."""
        if self._suspect:
            block, offset = divmod(int(batch.computed[slot]), batch.page_size)
            for group, page in enumerate(batch.tables[:, slot, block].tolist()):
                self._cache.clear(page, offset, group)
                self._suspect.discard(page)

    def clear(self, batch: InputBatch, rows: BatchRows) -> None:
        """Clear the suspect pages that these rows are about to write from their start."""
        if not self._suspect:
            return
        ends = rows.starts + rows.counts
        for slot, start, end in zip(rows.slots, rows.starts, ends, strict=True):
            size = batch.page_size
            blocks = slice(-(-start // size), -(-end // size))
            written = set(batch.tables[:, slot, blocks].flatten().tolist())
            for page in written & self._suspect:
                self._cache.clear(page)
            self._suspect -= written
