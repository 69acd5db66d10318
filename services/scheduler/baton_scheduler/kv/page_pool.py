"""KV pages of one worker: who may write where, and what may be read again."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

from baton_scheduler.kv.host_cache import HostCache
from baton_scheduler.kv.prefix_cache import PrefixCache


class PagePool:
    """Page numbers 0 .. total - 1, each in exactly one of three states:

        free  +  held  +  cached  =  total

        free     nobody refers to it, nobody wants what it holds
        held     n >= 1 sequences refer to it; of several that read from it, none writes to it
        cached   nobody refers to it, but the index knows which prefix it holds

        take ------> held -----> give, named -----> cached --share--> held
        free          |                               |
         ^            +-- give, not named --> free    +-- evicted, reset --> free, or taken

    A worker that joins again may say what its pages still hold: those are cached from the start
    (`adopt`).

    The pages of a sequence that ended are free at once, although a plan in flight may still
    write to them: the worker runs that plan before any later one that hands them out again. No
    plan in flight writes to a named page: it was full when it got its name. A page that is known
    only by what it begins with may be written behind that; it is never read, it is copied.
    """

    def __init__(self, total: int, host: HostCache | None = None) -> None:
        self.total = total
        self.host = host
        """Where named pages go that make room."""
        self.index = PrefixCache()
        self._free = list(range(total - 1, -1, -1))
        self._cached: dict[int, None] = {}
        """In the order in which they were given back: the least recently used is first."""
        self._references = array("I", bytes(4 * total))
        self._held = 0

    @property
    def num_free(self) -> int:
        """Pages that can be taken: those that are free, and those that are only cached."""
        return len(self._free) + len(self._cached)

    @property
    def num_cached(self) -> int:
        """Pages that are kept for what they hold alone."""
        return len(self._cached)

    @property
    def num_held(self) -> int:
        """Pages with an owner."""
        return self._held

    def take(self, count: int) -> list[int]:
        """Hand out `count` pages with one reference each; the caller has looked at `num_free`.

        Cached pages are given up, the least recently used first, only when no other is free.
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
        self._held += count
        self._balance()
        return pages

    def take_each(self, count: int) -> list[int]:
        """The pages that so many calls of `take(1)` would hand out, in that order."""
        assert 0 <= count <= self.num_free, "more pages taken than are free"
        pages = self._free[-1 : -count - 1 : -1]
        del self._free[len(self._free) - len(pages) :]
        while len(pages) < count:
            self._evict()
            pages.append(self._free.pop())
        for page in pages:
            self._references[page] = 1
        self._held += count
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
        """Add an owner to pages that have one, or that are cached."""
        for page in pages:
            if not self._references[page]:
                assert page in self._cached, "a free page cannot be shared"
                del self._cached[page]
                self._held += 1
            self._references[page] += 1
        self._balance()

    def give(self, pages: Sequence[int]) -> None:
        """Drop one reference of each page; those without an owner become cached or free.

        The last goes first: of a chain, the end is evicted before what leads to it.
        """
        for page in reversed(pages):
            assert self._references[page], "a page was given back twice"
            self._references[page] -= 1
            if not self._references[page]:
                self._held -= 1
                self._release(page)
        self._balance()

    def _release(self, page: int) -> None:
        if page in self.index:
            self._cached[page] = None
        else:
            self._free.append(page)

    def adopt(self, names: Mapping[int, bytes]) -> None:
        """These pages, of which none has an owner yet, hold what earlier sequences left there.

        Raises `ValueError` when there is no such page.
        """
        if not names.keys() <= set(self._free):
            raise ValueError("a page has a name that is not there")
        self._free = [page for page in self._free if page not in names]
        for page, name in names.items():
            self.index.add(page, name)
            self._cached[page] = None
        self._balance()

    def references(self, page: int) -> int:
        """How many owners a page has."""
        return self._references[page]

    def name(self, page: int, hash: bytes) -> bool:
        """From now on a held, full page is found by the prefix that it holds. False when another
        page is found by it already."""
        assert self._references[page], "only a page with an owner gets a name"
        return self.index.add(page, hash)

    def fill(self, page: int, hash: bytes, prefix: bytes, tokens: bytes) -> None:
        """A held page is full: it is found by its name, and by what it begins with, if no other
        page is already."""
        assert self._references[page], "only a page with an owner gets a name"
        self.index.fill(page, hash, prefix, tokens)

    def begin(self, page: int, prefix: bytes, tokens: bytes) -> None:
        """From now on a held page is found, to be copied, by what it begins with: these tokens
        behind this prefix. Its owner may go on writing behind them."""
        assert self._references[page], "only a page with an owner gets a name"
        self.index.begin(page, prefix, tokens)

    def disown(self, pages: Sequence[int]) -> None:
        """What these held pages hold is not to be trusted: nobody finds them any more."""
        for page in pages:
            self.index.forget(page)

    def reset(self) -> int:
        """Free every cached page, on the host too. Returns how many there were."""
        count, host = len(self._cached), self.host
        self.host = None
        while self._cached:
            self._evict()
        self.host = host
        return count + (host.reset() if host is not None else 0)

    def layout(self) -> bytes:
        """The free list, the counts and the index as bytes, for the state's digest."""
        lists = array("I", self._free).tobytes() + array("I", self._cached).tobytes()
        host = self.host.layout() if self.host is not None else b""
        return lists + self._references.tobytes() + self.index.layout() + host

    def _balance(self) -> None:
        assert len(self._free) + len(self._cached) + self._held == self.total, (
            "pages were lost or doubled"
        )

    def check(self) -> None:
        """Assert the whole invariant."""
        self._balance()
        self.index.check()
        if self.host is not None:
            self.host.check()
        free, cached, known = set(self._free), self._cached.keys(), self.index.pages()
        held = {page for page, count in enumerate(self._references) if count}
        assert len(free) == len(self._free), "a page is twice in the free list"
        assert len(held) == self._held and len(free | cached | held) == self.total, (
            "a page is in two states, or in none"
        )
        assert not free & known, "a free page has a name"
        assert cached <= known, "a cached page has no name"
