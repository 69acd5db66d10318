"""Host cache of one worker: cached pages that were swapped out of device memory.

    device page, cached, evicted --swap out--> host page --swap in--> a new device page

Both swaps are parts of a plan. Plans run in order, and a plan's swaps run before its rows, so an
evicted page can be reused at once, and its copy requested at once. A preempted sequence also finds
its evicted pages here.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from baton.kv.page_groups import PageGroups
from baton_scheduler.block_hashes import BlockHashes, group_key
from baton_scheduler.block_table import BlockTable, Tables
from baton_scheduler.kv.prefix_cache import longest_usable_prefix


class HostCache:
    """Host pages 0 .. total - 1 by page hash, with LRU eviction. Pages pinned by a pending swap in
    are not evicted."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._pages: dict[bytes, int] = {}
        """Page hash -> host page, least recently used first."""
        self._free = list(range(total - 1, -1, -1))
        self._pins = array("I", bytes(4 * total))
        self._outgoing: dict[int, tuple[bytes, int]] = {}
        """Device page -> (page hash, host page), for copies in the next plan."""

    def __len__(self) -> int:
        return len(self._pages)

    def keep(self, page: int, hash: bytes) -> None:
        """Copy an evicted device page with this hash to the host, if a host page is available."""
        if hash in self._pages:
            self._pages[hash] = self._pages.pop(hash)
            return
        if not self._free:
            self._evict()
        if self._free:
            self._pages[hash] = self._free.pop()
            self._outgoing[page] = (hash, self._pages[hash])

    def _evict(self) -> None:
        waiting = {hash for hash, _ in self._outgoing.values()}
        for hash, page in self._pages.items():
            if not self._pins[page] and hash not in waiting:
                self._drop(hash)
                return

    def _drop(self, hash: bytes) -> None:
        self._free.append(self._pages.pop(hash))

    def match(self, chain: BlockHashes, first: int, most: int, groups: PageGroups) -> Tables:
        """Host pages that extend a cached prefix of `first` blocks to at most `most`: per group,
        those that the next token attends to. All tables end with the same block."""
        pages = self._pages

        def has(group: int, block: int) -> bool:
            return group_key(chain.at(block), group) in pages

        end = longest_usable_prefix(has, groups, most, first)
        tables = list[BlockTable]()
        for group in range(len(groups)):
            start = max(first, groups.first(group, end * groups.page_size))
            hashes = (group_key(chain.at(block), group) for block in range(start, end))
            tables.append(BlockTable(start, [pages[hash] for hash in hashes]))
        return tables

    def pin(self, pages: Iterable[int]) -> None:
        """Keep these pages for a plan that will read them."""
        for page in pages:
            self._pins[page] += 1

    def unpin(self, pages: Iterable[int]) -> None:
        """Release pages after the plan was made or cancelled."""
        for page in pages:
            assert self._pins[page], "a host page was let go twice"
            self._pins[page] -= 1

    def outgoing(self) -> list[int]:
        """Pairs (device page, host page) to swap out in the current plan."""
        pairs = [number for page, (_, host) in self._outgoing.items() for number in (page, host)]
        self._outgoing.clear()
        return pairs

    def reset(self) -> int:
        """Drop all pages that are not pinned. Returns their number."""
        waiting = {hash for hash, _ in self._outgoing.values()}
        idle = [h for h, p in self._pages.items() if not self._pins[p] and h not in waiting]
        for hash in idle:
            self._drop(hash)
        return len(idle)

    def layout(self) -> bytes:
        """The whole cache as bytes, for the state's digest."""
        numbers = array("I", [*self._pages.values(), *self._free, *self._outgoing])
        return b"".join(self._pages) + numbers.tobytes() + self._pins.tobytes()

    def check(self) -> None:
        """Assert that every page is free or has one hash."""
        held = list(self._pages.values())
        assert sorted(held + self._free) == list(range(self.total))
        assert not any(self._pins[page] for page in self._free), "a page to be read is free"
        assert all(self._pages.get(hash) == page for hash, page in self._outgoing.values())
