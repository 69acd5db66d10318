"""Prefix cache: maps hashes of token prefixes to the pages that hold their KV.

A page is identified by the hash of all tokens up to its end, so it is found only behind an equal
prefix (automatic prefix caching as in vLLM, SOSP 2023, and SGLang, arXiv:2312.07104):

    root(tenant, salt) --block 0--> hash 0 --block 1--> hash 1 --block 2--> hash 2 ...
                                      |                   |                   |
                                   page 17             page 4              unknown: end of the hit

Only full pages have hashes, and only once the result of the step that filled them has arrived.

A page that matches only the beginning of the next block can be copied, and the copy extended (copy
on write). So pages are also indexed by the prefix that they continue and the tokens that they hold,
full or not:

    hash 1 --> page 9: [5 6 7 8], page 23: [5 6 3]          lookup [5 6 3 4]: 3 tokens of page 23

In a model with several page groups (`baton.kv.page_groups`), a page belongs to one group, and its
hash includes the group. A prefix is usable if every group has the pages that the next token attends
to: all before it, or those within its window.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import numpy as np

from baton.kv.page_groups import PageGroups
from baton.protocol.token_columns import pack
from baton_scheduler.block_hashes import BlockHashes, group_key
from baton_scheduler.block_table import BlockTable, Tables

_MOST_EVICTED = 65_536
"""Maximum number of hashes remembered after eviction; the oldest is dropped first."""
_MOST_FORKS = 8
"""Maximum number of pages per prefix that are compared with a block, the latest first."""


def longest_usable_prefix(
    has: Callable[[int, int], bool], groups: PageGroups, most: int, first: int = 0
) -> int:
    """Number of blocks, `first` to `most`, of the longest usable cached prefix.

    `has(group, block)` is True if a page is cached; blocks before `first` count as cached.
    """
    windowed = groups.windowed
    for group in range(len(groups)):
        if group not in windowed:
            lacking = (block for block in range(first, most) if not has(group, block))
            most = next(lacking, most)
    blocks = most + 1
    while most < blocks and first < most:
        blocks = most
        most = min((_run(has, groups, g, most, first) for g in windowed), default=most)
    return most


def _run(
    has: Callable[[int, int], bool], groups: PageGroups, group: int, most: int, first: int
) -> int:
    """Largest number of blocks after which a windowed group holds all pages in its window."""
    block = most - 1
    while block >= max(first, groups.first(group, most * groups.page_size)):
        if not has(group, block):
            most = block
        block -= 1
    return most


class PrefixCache:
    """Index of pages, by the hash of the prefix that ends in them (one page per hash, one hash per
    page) and by the prefix that they continue (any number of pages per prefix)."""

    def __init__(self) -> None:
        self._pages: dict[bytes, int] = {}
        self._hashes: dict[int, bytes] = {}
        self._forks: dict[bytes, dict[int, bytes]] = {}
        """Prefix hash -> page -> tokens (int32) whose KV the page begins with."""
        self._parents: dict[int, bytes] = {}
        self._evicted: dict[bytes, None] = {}
        self.changed: dict[int, None] = {}
        """Pages that gained or lost a hash since this was last cleared."""

    def __len__(self) -> int:
        return len(self._pages)

    def __contains__(self, page: object) -> bool:
        return page in self._hashes or page in self._parents

    def pages(self) -> set[int]:
        """All indexed pages."""
        return {*self._hashes, *self._parents}

    def match(self, chain: BlockHashes, most: int) -> list[int]:
        """Pages of the longest cached prefix of at most `most` blocks, for a single page group."""
        pages: list[int] = []
        for block in range(most):
            page = self._pages.get(chain.at(block))
            if page is None:
                break
            pages.append(page)
        return pages

    def cached_prefix(self, chain: BlockHashes, most: int, groups: PageGroups) -> Tables:
        """Pages of the longest usable cached prefix of at most `most` blocks: per group, those that
        the next token attends to. All tables end with the same block."""
        if groups.plain:
            return [BlockTable(0, self.match(chain, most))]
        pages = self._pages

        def has(group: int, block: int) -> bool:
            return group_key(chain.at(block), group) in pages

        end = longest_usable_prefix(has, groups, most)
        firsts = [groups.first(group, end * groups.page_size) for group in range(len(groups))]
        return [
            BlockTable(
                first, [pages[group_key(chain.at(block), group)] for block in range(first, end)]
            )
            for group, first in enumerate(firsts)
        ]

    def hash_of(self, page: int) -> bytes | None:
        """Hash of a page; None if it has none."""
        return self._hashes.get(page)

    def knows(self, hash: bytes) -> bool:
        """True if a page has this hash."""
        return hash in self._pages

    def add(self, page: int, hash: bytes) -> bool:
        """Give a page its hash. Returns False, and drops the page from the index, if another page
        already has this hash."""
        if hash in self._pages:
            self._leave(page)
            return False
        assert page not in self._hashes, "a page's content changed under its hash"
        self._pages[hash] = page
        self._hashes[page] = hash
        self._evicted.pop(hash, None)
        self.changed[page] = None
        return True

    def fill(self, page: int, hash: bytes, prefix: bytes, tokens: bytes) -> None:
        """`add` and `begin` for a page that has become full; called at every step."""
        if hash in self._pages:
            self._leave(page)
            return
        old = self._parents.get(page)
        assert page not in self._hashes, "a page's content changed under its hash"
        assert old is None or old == prefix, "a page's content changed under its hash"
        self._pages[hash], self._hashes[page] = page, hash
        self._evicted.pop(hash, None)
        self.changed[page] = None
        self._parents[page] = prefix
        self._forks.setdefault(prefix, {})[page] = tokens

    def begin(self, page: int, prefix: bytes, tokens: bytes) -> None:
        """Index a page that begins with the KV of these tokens (int32) after the prefix."""
        old = self._parents.get(page)
        assert old is None or old == prefix, "a page's content changed under its hash"
        self._parents[page] = prefix
        self._forks.setdefault(prefix, {})[page] = tokens

    def fork(self, prefix: bytes, tokens: bytes) -> tuple[int, int]:
        """(page, count): the page that continues the prefix with the longest common beginning of
        `tokens` (int32), among those compared, and its length in tokens; (-1, 0) if there is
        none."""
        best, most = -1, 0
        for page, page_tokens in islice(reversed(self._forks.get(prefix, {}).items()), _MOST_FORKS):
            common = _common(page_tokens, tokens)
            if common > most:
                best, most = page, common
        return best, most

    def evict(self, page: int) -> bytes | None:
        """Drop a page from the index, and remember its hash as evicted.

        Returns the hash if the page was full.
        """
        hash = self._hashes.get(page)
        self.forget(page)
        if hash is not None:
            self._evicted[hash] = None
            if len(self._evicted) > _MOST_EVICTED:
                del self._evicted[next(iter(self._evicted))]
        return hash

    def was_evicted(self, hash: bytes) -> bool:
        """True if a page with this hash was evicted recently and is not cached again."""
        return hash in self._evicted

    def goes_on(self, prefix: bytes) -> bool:
        """True if a cached page continues this prefix."""
        return prefix in self._forks

    def forget(self, page: int) -> None:
        """Drop a page's hash, if it has one."""
        hash = self._hashes.pop(page, None)
        if hash is not None:
            del self._pages[hash]
            self.changed[page] = None
        self._leave(page)

    def _leave(self, page: int) -> None:
        prefix = self._parents.pop(page, None)
        if prefix is not None:
            forks = self._forks[prefix]
            del forks[page]
            if not forks:
                del self._forks[prefix]

    def layout(self) -> bytes:
        """All hashes as bytes, for the state's digest."""
        hashes = pack(self._hashes, "I") + b"".join(self._hashes.values())
        forks = (tokens for pages in self._forks.values() for tokens in pages.values())
        parents = pack(self._parents, "I") + b"".join(self._parents.values())
        return hashes + parents + b"".join(forks) + pack([len(self._evicted)], "I")

    def check(self) -> None:
        """Assert that both directions of the index agree."""
        assert {page: hash for hash, page in self._pages.items()} == self._hashes
        forks = {page: hash for hash, pages in self._forks.items() for page in pages}
        assert forks == self._parents and all(self._forks.values())


def _common(first: bytes, second: bytes) -> int:
    """Number of tokens that two int32 columns have in common from the start."""
    # Blocks behind a root usually differ in their first token.
    if first[:4] != second[:4]:
        return 0
    length = min(len(first), len(second)) // 4
    differs = np.frombuffer(first, "<i4", length) != np.frombuffer(second, "<i4", length)
    return int(differs.argmax()) if differs.any() else length
