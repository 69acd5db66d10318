"""What a worker has been told of the names of its pages."""

from __future__ import annotations

from baton.kv.page_hashes import join_hashes
from baton.protocol import PageHashes
from baton.protocol.token_columns import pack
from baton_scheduler.kv.prefix_cache import PrefixCache

_SECONDS = 0.25
"""A new name is told with those of as long a time: it is of use after a restart only."""


class PageHashSync:
    """Told late of names, but at once of each that is gone: so a worker never takes a page for
    what it has stopped to be, whenever the scheduler ends."""

    def __init__(self) -> None:
        self._pages: set[int] = set()
        self._next = 0.0

    def assume(self, index: PrefixCache) -> None:
        """It has said itself what these pages hold."""
        self._pages = index.pages()
        index.changed.clear()

    def updates(self, index: PrefixCache, epoch: int, now: float) -> PageHashes | None:
        """What to tell now; to be sent before any plan or pull of the same moment."""
        changed = index.changed
        if not changed:
            return None
        gone = self._pages.intersection(changed)
        if now < self._next and not gone:
            return None
        names = self._names(index, now)
        self._pages.difference_update(gone)
        self._pages.update(names)
        forgotten = gone.difference(names)
        for page in forgotten:
            if index.name(page) is None:
                changed.pop(page, None)
        return (
            PageHashes(epoch, join_hashes(names), pack(forgotten, "I"))
            if names or forgotten
            else None
        )

    def _names(self, index: PrefixCache, now: float) -> dict[int, bytes]:
        """New names, if it is time for them."""
        if now < self._next:
            return {}
        self._next = now + _SECONDS
        names = {page: name for page in index.changed if (name := index.name(page)) is not None}
        index.changed.clear()
        return names
