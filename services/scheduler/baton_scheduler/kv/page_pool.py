"""Pool of the KV pages of one worker, with reference counts and LRU eviction."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

from baton_scheduler.kv.host_cache import HostCache
from baton_scheduler.kv.prefix_cache import PrefixCache


class PagePool:
    """Page numbers 0 .. total - 1, each in exactly one of three states:

        free  +  held  +  cached  =  total

        free     no references, not in the prefix cache
        held     n >= 1 sequences refer to it; a page with several references is not written
        cached   no references, but in the prefix cache

        take ------> held ---> give, indexed -----> cached --share--> held
        free          |                               |
         ^            +-- give, not indexed -> free   +-- evicted, reset --> free, or taken

    A worker that joins again may report cached pages; they are cached from the start (`adopt`).

    The pages of an ended sequence are free at once, although a plan in flight may still write to
    them: the worker runs that plan before any later one that reuses them. No plan in flight writes
    to a hashed page, since it was full when it was hashed. A page that is only indexed by its first
    tokens may be written after them; it is never read, only copied.
    """

    def __init__(self, total: int, host: HostCache | None = None) -> None:
        self.total = total
        self.host = host
        """Host cache that receives evicted pages, if any."""
        self.index = PrefixCache()
        self._free = list(range(total - 1, -1, -1))
        self._cached: dict[int, None] = {}
        """Cached pages, least recently used first."""
        self._references = array("I", bytes(4 * total))
        self._num_held = 0

    @property
    def num_free(self) -> int:
        """Number of pages that can be taken: free and cached."""
        return len(self._free) + len(self._cached)

    @property
    def num_cached(self) -> int:
        """Number of cached pages."""
        return len(self._cached)

    @property
    def num_held(self) -> int:
        """Number of pages with references."""
        return self._num_held

    def take(self, count: int) -> list[int]:
        """Take `count` pages with one reference each; the caller has checked `num_free`.

        Cached pages are evicted, least recently used first, only if no page is free.
        """
        assert 0 <= count <= self.num_free, "more pages taken than are free"
        if not count:
            return []
        while len(self._free) < count:
            self._evict()
        pages = self._free[-count:]
        del self._free[-count:]
        for page in pages:
            self._references[page] = 1
        self._num_held += count
        self._balance()
        return pages

    def take_each(self, count: int) -> list[int]:
        """The pages that `count` calls of `take(1)` would return, in that order."""
        assert 0 <= count <= self.num_free, "more pages taken than are free"
        pages = self._free[-1 : -count - 1 : -1]
        del self._free[len(self._free) - len(pages) :]
        while len(pages) < count:
            self._evict()
            pages.append(self._free.pop())
        for page in pages:
            self._references[page] = 1
        self._num_held += count
        self._balance()
        return pages

    def _evict(self) -> None:
        page = next(iter(self._cached))
        del self._cached[page]
        hash = self.index.evict(page)
        if hash is not None and self.host is not None:
            self.host.keep(page, hash)
        self._free.append(page)

    def share(self, pages: Sequence[int]) -> None:
        """Add a reference to pages that are held or cached."""
        for page in pages:
            if not self._references[page]:
                assert page in self._cached, "a free page cannot be shared"
                del self._cached[page]
                self._num_held += 1
            self._references[page] += 1
        self._balance()

    def give(self, pages: Sequence[int]) -> None:
        """Drop one reference of each page; pages without references become cached or free.

        The last page goes first, so that the end of a prefix is evicted before its beginning.
        """
        for page in reversed(pages):
            assert self._references[page], "a page was given back twice"
            self._references[page] -= 1
            if not self._references[page]:
                self._num_held -= 1
                self._release(page)
        self._balance()

    def _release(self, page: int) -> None:
        if page in self.index:
            self._cached[page] = None
        else:
            self._free.append(page)

    def adopt(self, hashes: Mapping[int, bytes]) -> None:
        """Mark free pages as cached with these hashes, which a worker of an earlier epoch has left.

        Raises `ValueError` if there is no such page.
        """
        if not hashes.keys() <= set(self._free):
            raise ValueError("a page with a hash is not free")
        self._free = [page for page in self._free if page not in hashes]
        for page, hash in hashes.items():
            self.index.add(page, hash)
            self._cached[page] = None
        self._balance()

    def references(self, page: int) -> int:
        """Number of references to a page."""
        return self._references[page]

    def add_hash(self, page: int, hash: bytes) -> bool:
        """Hash a held, full page. Returns False if another page already has this hash."""
        assert self._references[page], "only a held page gets a hash"
        return self.index.add(page, hash)

    def fill(self, page: int, hash: bytes, prefix: bytes, tokens: bytes) -> None:
        """Index a held page that became full, by its hash and by its tokens, unless another page
        has the hash."""
        assert self._references[page], "only a held page gets a hash"
        self.index.fill(page, hash, prefix, tokens)

    def begin(self, page: int, prefix: bytes, tokens: bytes) -> None:
        """Index a held page, for copying, by the prefix it continues and its first tokens. Its
        owner may still write after them."""
        assert self._references[page], "only a held page gets a hash"
        self.index.begin(page, prefix, tokens)

    def uncache(self, pages: Sequence[int]) -> None:
        """Drop held pages whose content is not to be trusted from the prefix cache."""
        for page in pages:
            self.index.forget(page)

    def reset(self) -> int:
        """Free every cached page, on the host too. Returns their number."""
        count, host = len(self._cached), self.host
        self.host = None
        while self._cached:
            self._evict()
        self.host = host
        return count + (host.reset() if host is not None else 0)

    def layout(self) -> bytes:
        """Free list, reference counts and index as bytes, for the state's digest."""
        lists = array("I", self._free).tobytes() + array("I", self._cached).tobytes()
        host = self.host.layout() if self.host is not None else b""
        return lists + self._references.tobytes() + self.index.layout() + host

    def _balance(self) -> None:
        assert len(self._free) + len(self._cached) + self._num_held == self.total, (
            "pages were lost or doubled"
        )

    def check(self) -> None:
        """Assert all invariants."""
        self._balance()
        self.index.check()
        if self.host is not None:
            self.host.check()
        free, cached, known = set(self._free), self._cached.keys(), self.index.pages()
        held = {page for page, count in enumerate(self._references) if count}
        assert len(free) == len(self._free), "a page is twice in the free list"
        assert len(held) == self._num_held and len(free | cached | held) == self.total, (
            "a page is in two states, or in none"
        )
        assert not free & known, "a free page has a hash"
        assert cached <= known, "a cached page has no hash"
