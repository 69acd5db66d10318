"""Pages that a failed sequence may have left with NaN or infinity in them."""

from __future__ import annotations

from baton_worker.engine.batch.batch_rows import BatchRows
from baton_worker.engine.batch.block_tables import BlockTables
from baton_worker.kv_cache import KVCache


class NanQuarantine:
    """Keeps NaN and infinity of a failed sequence from the next owner of its pages.

    Attention reads whole pages and masks what a sequence has not written, but a masked NaN still
    spreads. So a suspect page is cleared before it is written from its start; a suspect page shared
    as a prefix is left alone, and its readers fail loudly.
    """

    def __init__(self, cache: KVCache, tables: BlockTables) -> None:
        self._cache, self._tables = cache, tables
        self._suspect: set[int] = set()

    def add(self, slot: int) -> None:
        """Suspect all pages of a slot."""
        self.suspect(self._tables.pages(slot))

    def suspect(self, pages: list[int]) -> None:
        """Suspect pages that a sequence had."""
        self._suspect.update(pages)

    def erase(self, slot: int, start: int, end: int) -> None:
        """Clear what a slot has written at these positions and will write again, since earlier
        tokens read those pages until then."""
        size = self._tables.page_size
        for block in range(start // size, -(-end // size)):
            for group, page in enumerate(self._tables.tables[:, slot, block].tolist()):
                self._cache.clear(page, max(0, start - block * size), group)

    def copied(self, slot: int, computed: int) -> None:
        """Suspect the first page of a sequence that is a partial copy: its remainder may come from
        a failed sequence."""
        if self._suspect:
            block, offset = divmod(computed, self._tables.page_size)
            for group, page in enumerate(self._tables.tables[:, slot, block].tolist()):
                self._cache.clear(page, offset, group)
                self._suspect.discard(page)

    def clear(self, rows: BatchRows) -> None:
        """Clear the suspect pages that these rows are about to write from their start."""
        if not self._suspect:
            return
        ends = rows.starts + rows.counts
        for slot, start, end in zip(rows.slots, rows.starts, ends, strict=True):
            size = self._tables.page_size
            blocks = slice(-(-start // size), -(-end // size))
            written = set(self._tables.tables[:, slot, blocks].flatten().tolist())
            for page in written & self._suspect:
                self._cache.clear(page)
            self._suspect -= written
