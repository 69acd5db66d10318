"""Block tables: which pages hold consecutive blocks of one sequence, group by group."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import NamedTuple, TypeAlias

import numpy as np

NONE = 0xFFFFFFFF
"""On the wire, in the place of a page that a sequence does not hold."""


class BlockTable(NamedTuple):
    """Pages of one group, from block `first` on."""

    first: int
    pages: list[int]

    @property
    def end(self) -> int:
        """The block behind the last."""
        return self.first + len(self.pages)

    def since(self, block: int) -> BlockTable:
        """Less what lies before a block."""
        first = max(self.first, block)
        return BlockTable(first, self.pages[first - self.first :])

    def at(self, block: int) -> int:
        """The page of a block that it holds."""
        assert block >= self.first
        return self.pages[block - self.first]


Tables: TypeAlias = list[BlockTable]
"""One for each group."""


def flat(tables: Iterable[BlockTable]) -> list[int]:
    """All their pages."""
    return list(chain.from_iterable(table.pages for table in tables))


def column(tables: Iterable[BlockTable]) -> bytes:
    """uint32: the tables one after the other, all of one length, from the first block on."""
    rows = (np.array([NONE] * table.first + table.pages, "<u4") for table in tables)
    return b"".join(row.tobytes() for row in rows)
