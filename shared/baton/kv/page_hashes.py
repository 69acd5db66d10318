"""What KV pages hold, by name: who knows a token prefix finds its page after a restart too.

A name is the hash of every token up to the end of the page
(`baton.protocol.token_columns.block_hash`), and a byte for the group of layers where there are
several. It says nothing of the process that computed it.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from baton.protocol import HeldPages, PageHashes
from baton.protocol.token_columns import pack, unpack

_HASH = 16
_BYTES = _HASH + 1
"""On the wire every name ends with its group; that of the first group is not part of it."""
MOST_HELD = 2**15
"""So many names fit into a Hello, which is sent again and again until it is answered."""


def join_hashes(names: Mapping[int, bytes]) -> HeldPages:
    """Columns of pages and their names."""
    return HeldPages(pack(names, "I"), b"".join(n.ljust(_BYTES, b"\0") for n in names.values()))


def split_hashes(held: HeldPages) -> dict[int, bytes]:
    """Undo `join`.

    Raises `ValueError` when the columns contradict each other, or two pages have one name.
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


class PageHashTable:
    """The pages of a worker that its scheduler has named. They outlive the scheduler."""

    def __init__(self) -> None:
        self._names: dict[int, bytes] = {}

    def update(self, kept: PageHashes) -> None:
        """What the scheduler has named, and what it has forgotten since.

        Raises `ValueError` when the message contradicts itself; then nothing is held.
        """
        names, self._names = self._names, {}
        for page in unpack(kept.evicted, "I"):
            names.pop(page, None)
        for page, name in split_hashes(kept.added).items():
            names.pop(page, None)  # The latest is last.
            names[page] = name
        self._names = names

    def held(self) -> HeldPages | None:
        """The latest of them, the longest known first; None when there are none."""
        late = islice(self._names.items(), max(0, len(self._names) - MOST_HELD), None)
        return join_hashes(dict(late)) if self._names else None
