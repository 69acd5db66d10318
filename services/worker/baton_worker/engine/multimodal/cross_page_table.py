"""The pages of encoder states: which of them hold the KV of which media."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import NamedTuple, TypeAlias

Key: TypeAlias = tuple[bytes, ...]
"""Digests of the media items that tokens see together, in order."""


class StatePages(NamedTuple):
    """Pages of the KV of states."""

    pages: list[int]
    num_states: int


class CrossPageTable:
    """Assigns pages of a `kv_cache.CrossPages` to media, and keeps them for later requests with the
    same media; LRU eviction. Media that running sequences need are pinned, and may exceed the
    bound: then there are more pages from then on.

    Args:
        page_size: states per page.
        page_bytes: of one page in all layers.
        max_bytes: bound of all pages, as far as they are not pinned.
    """

    def __init__(self, page_size: int, page_bytes: int, max_bytes: int) -> None:
        self.num_pages = 0
        """Pages that there are."""
        self._size, self._most = page_size, max_bytes // max(1, page_bytes)
        self._held, self._free = dict[Key, StatePages](), list[int]()

    def __contains__(self, key: object) -> bool:
        return key in self._held

    def get(self, key: Key) -> StatePages:
        """The pages of media, which are now those used last. Raises `KeyError`."""
        pages = self._held[key] = self._held.pop(key)
        return pages

    def shows(self, digest: object) -> bool:
        """Whether an item has pages, alone or with others."""
        return any(digest in key for key in self._held)

    def assign(self, key: Key, num_states: int, pinned: Container[bytes]) -> StatePages:
        """Pages for the KV of media that have none.

        Args:
            pinned: digests of items whose pages stay.
        """
        assert key not in self._held
        count = -(-num_states // self._size)
        self._evict(count - max(0, self._most - self.num_pages), pinned)
        self._grow(count - len(self._free))
        pages = [self._free.pop() for _ in range(count)]
        entry = self._held[key] = StatePages(pages, num_states)
        return entry

    def drop(self, keys: Iterable[Key]) -> None:
        """Free the pages of these media, if they have some."""
        for key in keys:
            if key in self._held:
                self._free += self._held.pop(key).pages

    def _evict(self, count: int, pinned: Container[bytes]) -> None:
        """Have `count` free pages, if enough are not pinned."""
        for key in list(self._held):
            if len(self._free) >= count:
                return
            if not all(digest in pinned for digest in key):
                self.drop([key])

    def _grow(self, lacking: int) -> None:
        if lacking > 0:
            doubled = min(2 * self.num_pages, self._most)
            total = max(self.num_pages + lacking, doubled)
            self._free += range(total - 1, self.num_pages - 1, -1)
            self.num_pages = total
