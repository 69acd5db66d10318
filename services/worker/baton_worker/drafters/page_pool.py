"""Pages of a drafter: which are free, and which still hold a prefix that was drafted for."""

from __future__ import annotations

from collections import OrderedDict


class PagePool:
    """Reference counts by page, and full pages by the hash of their prefix. A page that no slot
    holds stays a cached prefix until it is needed, the least recently used first."""

    def __init__(self, num_pages: int) -> None:
        self._free = list(range(num_pages - 1, -1, -1))
        self._holders = [0] * num_pages
        self._page_of: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}
        self._idle = OrderedDict[int, None]()
        """Pages with a hash that no slot holds, the next to be given away first."""

    @property
    def num_available(self) -> int:
        """Pages that `take` can give."""
        return len(self._free) + len(self._idle)

    def take(self, count: int) -> list[int] | None:
        """Pages for one holder; None if there are not as many."""
        if count > self.num_available:
            return None
        while len(self._free) < count:
            page, _ = self._idle.popitem(last=False)
            self._forget(page)
            self._free.append(page)
        pages = [self._free.pop() for _ in range(count)]
        for page in pages:
            self._holders[page] = 1
        return pages

    def share(self, prefix: bytes) -> int | None:
        """Acquire the page of a prefix; None if there is none."""
        page = self._page_of.get(prefix)
        if page is not None:
            self._holders[page] += 1
            self._idle.pop(page, None)
        return page

    def name(self, page: int, prefix: bytes) -> None:
        """A held page is full and holds the end of this prefix. One page per prefix is found."""
        if prefix not in self._page_of and page not in self._hash_of:
            self._page_of[prefix], self._hash_of[page] = page, prefix

    def give_back(self, pages: list[int], *, broken: bool = False) -> None:
        """Release these pages; `broken` ones are removed from the prefixes."""
        for page in pages:
            if broken:
                self._forget(page)
            self._holders[page] -= 1
            if not self._holders[page]:
                self._retire(page)

    def _retire(self, page: int) -> None:
        if page in self._hash_of:
            self._idle[page] = None
        else:
            self._free.append(page)

    def _forget(self, page: int) -> None:
        if (prefix := self._hash_of.pop(page, None)) is not None:
            del self._page_of[prefix]
