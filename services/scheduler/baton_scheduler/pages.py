"""KV pages of one worker: who may write where."""

from __future__ import annotations

from array import array
from collections.abc import Iterable


class PagePool:
    """Page numbers 0 .. total - 1, each either free or held by at least one owner.

    Invariant, at every moment:

        free  +  held  =  total         a page is free exactly when its reference count is 0

    The pages of a sequence that ended are free at once, although a plan in flight may still
    write to them: the worker runs that plan before any later one that hands them out again.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = list(range(total - 1, -1, -1))
        self._references = array("I", bytes(4 * total))
        self._held = 0

    @property
    def num_free(self) -> int:
        """Pages that can be taken."""
        return len(self._free)

    @property
    def num_held(self) -> int:
        """Pages with an owner."""
        return self._held

    def take(self, count: int) -> list[int]:
        """Hand out `count` pages with one reference each; the caller has looked at `num_free`."""
        assert 0 <= count <= len(self._free), "more pages taken than are free"
        if not count:
            return []
        pages = self._free[-count:]
        del self._free[-count:]
        for page in pages:
            self._references[page] = 1
        self._held += count
        self._balance()
        return pages

    def share(self, pages: Iterable[int]) -> None:
        """Add an owner to pages that have one."""
        for page in pages:
            assert self._references[page], "a free page cannot be shared"
            self._references[page] += 1

    def give(self, pages: Iterable[int]) -> None:
        """Drop one reference of each page; those without an owner become free."""
        for page in pages:
            assert self._references[page], "a page was given back twice"
            self._references[page] -= 1
            if not self._references[page]:
                self._free.append(page)
                self._held -= 1
        self._balance()

    def references(self, page: int) -> int:
        """How many owners a page has."""
        return self._references[page]

    def layout(self) -> bytes:
        """The free list and the counts as bytes, for the state's digest."""
        return array("I", self._free).tobytes() + self._references.tobytes()

    def _balance(self) -> None:
        assert len(self._free) + self._held == self.total, "pages were lost or doubled"

    def check(self) -> None:
        """Assert the whole invariant, page by page."""
        self._balance()
        free = set(self._free)
        assert len(free) == len(self._free), "a page is twice in the free list"
        for page, count in enumerate(self._references):
            assert (page in free) == (count == 0), f"page {page} is free and held, or neither"
