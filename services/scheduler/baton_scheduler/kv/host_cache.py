"""Host memory of one worker: where cached pages go when the device has no room for them.

    device page, named, evicted --swap out--> host page --swap in--> a new device page

Both are parts of a plan and run in the order of steps, a plan's swaps before everything else of
it. So a page may be promised to another sequence as soon as it is evicted, and its copy may be
asked for as soon as it is promised. A preempted sequence whose pages were taken finds them here
as well.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from baton.kv.page_groups import PageGroups
from baton_scheduler.kv.block_table import BlockTable, Tables
from baton_scheduler.kv.prefix_cache import BlockHashes, group_key, longest_usable_prefix


class HostCache:
    """Host pages 0 .. total - 1 by the prefix that they hold. The least recently used makes room;
    those that a waiting plan will read do not."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._pages: dict[bytes, int] = {}
        """By name, the least recently used first."""
        self._free = list(range(total - 1, -1, -1))
        self._pins = array("I", bytes(4 * total))
        self._outgoing: dict[int, tuple[bytes, int]] = {}
        """Device page -> name and host page, of copies that the next plan makes."""

    def __len__(self) -> int:
        return len(self._pages)

    def keep(self, page: int, hash: bytes) -> None:
        """A device page of this name makes room: have it copied, if there is a page for it."""
        if hash in self._pages:
            self._pages[hash] = self._pages.pop(hash)
            return
        if not self._free:
            self._evict()
        if self._free:
            self._pages[hash] = self._free.pop()
            self._outgoing[page] = (hash, self._pages[hash])

    def _evict(self) -> None:
        waiting = {name for name, _ in self._outgoing.values()}
        for hash, page in self._pages.items():
            if not self._pins[page] and hash not in waiting:
                self._drop(hash)
                return

    def _drop(self, hash: bytes) -> None:
        self._free.append(self._pages.pop(hash))

    def match(self, chain: BlockHashes, first: int, most: int, groups: PageGroups) -> Tables:
        """Host pages that prolong a prefix of `first` blocks, which is known, to at most `most`: of
        each group those that the next token sees. All end with the same block."""
        pages = self._pages

        def has(group: int, block: int) -> bool:
            return group_key(chain.at(block), group) in pages

        end = longest_usable_prefix(has, groups, most, first)
        tables = list[BlockTable]()
        for group in range(len(groups)):
            start = max(first, groups.first(group, end * groups.page_size))
            names = (group_key(chain.at(block), group) for block in range(start, end))
            tables.append(BlockTable(start, [pages[name] for name in names]))
        return tables

    def pin(self, pages: Iterable[int]) -> None:
        """A plan that is still to be made will read these pages."""
        for page in pages:
            self._pins[page] += 1

    def unpin(self, pages: Iterable[int]) -> None:
        """The plan has been made, or will not be."""
        for page in pages:
            assert self._pins[page], "a host page was let go twice"
            self._pins[page] -= 1

    def outgoing(self) -> list[int]:
        """Pairs (device page, host page) for the plan that is being made."""
        pairs = [number for page, (_, host) in self._outgoing.items() for number in (page, host)]
        self._outgoing.clear()
        return pairs

    def reset(self) -> int:
        """Forget what no plan will read. Returns how many pages that were."""
        waiting = {name for name, _ in self._outgoing.values()}
        idle = [h for h, p in self._pages.items() if not self._pins[p] and h not in waiting]
        for hash in idle:
            self._drop(hash)
        return len(idle)

    def layout(self) -> bytes:
        """All of it as bytes, for the state's digest."""
        numbers = array("I", [*self._pages.values(), *self._free, *self._outgoing])
        return b"".join(self._pages) + numbers.tobytes() + self._pins.tobytes()

    def check(self) -> None:
        """Assert that every page is free or has one name."""
        held = list(self._pages.values())
        assert sorted(held + self._free) == list(range(self.total))
        assert not any(self._pins[page] for page in self._free), "a page to be read is free"
        assert all(self._pages.get(name) == page for name, page in self._outgoing.values())
