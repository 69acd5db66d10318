"""Pages of a drafter that shares none of them between sequences."""

from __future__ import annotations

import numpy as np

from baton_worker.drafters.page_pool import PagePool
from baton_worker.kv_cache import KVCache


class BlockTables:
    """Block tables by slot. A page is zeroed when a slot takes it: attention multiplies what it
    does not see by 0, which would leave a NaN.

    Args:
        cache: the pages.
        max_num_seqs: slots.
        max_model_len: most tokens of a sequence.
    """

    def __init__(self, cache: KVCache, max_num_seqs: int, max_model_len: int) -> None:
        self._cache, self.page_size = cache, cache.page_size
        self._pool = PagePool(cache.num_pages)
        self.tables = np.zeros((1, max_num_seqs, -(-max_model_len // self.page_size)), np.int32)
        """int32 [1, slots, blocks], as `AttentionBatch.build_all` takes them."""
        self._pages: dict[int, list[int]] = {}

    def reserve(self, slot: int, length: int) -> bool:
        """Pages for so many tokens of a slot; False if there are none, or no slot is so long."""
        pages = self._pages.setdefault(slot, [])
        missing = -(-length // self.page_size) - len(pages)
        if missing <= 0:
            return True
        if len(pages) + missing > self.tables.shape[2]:
            return False
        if (allocated := self._pool.take(missing)) is None:
            return False
        for page in allocated:
            self._cache.clear(page)
        self.tables[0, slot, len(pages) : len(pages) + missing] = allocated
        pages += allocated
        return True

    def release(self, slot: int) -> None:
        """The sequence of a slot has gone."""
        self._pool.give_back(self._pages.pop(slot, []))
