"""Hashes of cached pages, which let a prefix cache survive a restart of the scheduler.

A page hash is the hash of all tokens up to the end of the page
(`baton.protocol.token_columns.block_hash`), followed by one byte for the page group if it is not
group 0. It does not depend on the process that computed it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Protocol

from baton.protocol import HeldPages, PageHashes
from baton.protocol.token_columns import pack, unpack

_HASH = 16
_BYTES = _HASH + 1
"""Bytes of a page hash on the wire, including the page group, which group 0 omits elsewhere."""
MOST_HELD = 2**15
"""Maximum number of page hashes in a `Hello`, which is resent until it is answered."""


def join_hashes(names: Mapping[int, bytes]) -> HeldPages:
    """Pack page -> page hash into columns."""
    return HeldPages(pack(names, "I"), b"".join(n.ljust(_BYTES, b"\0") for n in names.values()))


def split_hashes(held: HeldPages) -> dict[int, bytes]:
    """Unpack columns into page -> page hash, the inverse of `join_hashes`.

    Raises `ValueError` if the columns disagree in length, or a page or hash occurs twice.
    """
    pages = unpack(held.pages, "I").tolist()
    if len(held.hashes) != _BYTES * len(pages):
        raise ValueError("there is not one name for each page")
    ends = range(_BYTES, len(held.hashes) + 1, _BYTES)
    names = {p: _name(held.hashes[end - _BYTES : end]) for p, end in zip(pages, ends, strict=True)}
    if not len(pages) == len(names) == len(set(names.values())):
        raise ValueError("a page is named twice, or a name given twice")
    return names


def _name(padded: bytes) -> bytes:
    return padded if padded[_HASH] else padded[:_HASH]


class HashStore(Protocol):
    """Stores the hashes of a worker's pages beyond the worker's lifetime."""

    def hashes(self) -> dict[int, bytes]:
        """Page -> page hash, as last stored."""
        ...

    def forget(self, pages: Iterable[int]) -> None:
        """Remove the hashes of these pages."""
        ...

    def put(self, names: Mapping[int, bytes]) -> None:
        """Give pages their hashes."""
        ...

    def clear(self) -> None:
        """Remove all hashes."""
        ...


class PageHashTable:
    """A worker's copy of the hashes of its cached pages. It outlives the scheduler, and with a
    `HashStore` the worker."""

    def __init__(self, store: HashStore | None = None) -> None:
        self._store = store
        self._names: dict[int, bytes] = {} if store is None else store.hashes()

    def update(self, message: PageHashes) -> None:
        """Apply additions and evictions.

        Raises `ValueError` if the message is inconsistent; the table is then empty.
        """
        names, self._names = self._names, {}
        try:
            evicted, added = unpack(message.evicted, "I").tolist(), split_hashes(message.added)
        except ValueError:
            if self._store is not None:
                self._store.clear()
            raise
        for page in evicted:
            names.pop(page, None)
        for page, name in added.items():
            names.pop(page, None)  # Keeps the latest entry last.
            names[page] = name
        if self._store is not None:
            self._store.forget(evicted)
            self._store.put(added)
        self._names = names

    def held(self) -> HeldPages | None:
        """The latest `MOST_HELD` entries, oldest first; None if the table is empty."""
        late = islice(self._names.items(), max(0, len(self._names) - MOST_HELD), None)
        return join_hashes(dict(late)) if self._names else None
