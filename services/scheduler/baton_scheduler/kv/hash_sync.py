"""Synchronization of page hashes from the scheduler to a worker."""

from __future__ import annotations

from baton.kv.page_hashes import join_hashes
from baton.protocol import PageHashes
from baton.protocol.token_columns import pack
from baton_scheduler.kv.prefix_cache import PrefixCache

_SECONDS = 0.25
"""Interval at which new hashes are sent; they are only needed after a restart."""


class PageHashSync:
    """Sends new hashes in batches but evictions at once, so a worker never reports a hash for a
    page whose content was replaced."""

    def __init__(self) -> None:
        self._pages: set[int] = set()
        self._next = 0.0

    def assume(self, index: PrefixCache) -> None:
        """Mark the current hashes as known to the worker, which reported them."""
        self._pages = index.pages()
        index.changed.clear()

    def updates(self, index: PrefixCache, epoch: int, now: float) -> PageHashes | None:
        """Changes to send now, before any plan or pull of the same tick; None if there are none."""
        changed = index.changed
        if not changed:
            return None
        evicted = self._pages.intersection(changed)
        if now < self._next and not evicted:
            return None
        hashes = self._new_hashes(index, now)
        self._pages.difference_update(evicted)
        self._pages.update(hashes)
        forgotten = evicted.difference(hashes)
        for page in forgotten:
            if index.hash_of(page) is None:
                changed.pop(page, None)
        return (
            PageHashes(epoch, join_hashes(hashes), pack(forgotten, "I"))
            if hashes or forgotten
            else None
        )

    def _new_hashes(self, index: PrefixCache, now: float) -> dict[int, bytes]:
        """New hashes, if it is time to send them."""
        if now < self._next:
            return {}
        self._next = now + _SECONDS
        hashes = {page: hash for page in index.changed if (hash := index.hash_of(page)) is not None}
        index.changed.clear()
        return hashes
