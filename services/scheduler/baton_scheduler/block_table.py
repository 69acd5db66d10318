"""Block tables: the pages of consecutive blocks of a sequence, one table per page group."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import NamedTuple, TypeAlias

import numpy as np

NONE = 0xFFFFFFFF
"""Stands for a missing page on the wire."""


class BlockTable(NamedTuple):
    """Pages of one group, starting with block `first`."""

    first: int
    pages: list[int]

    @property
    def end(self) -> int:
        """Number of the block after the last one."""
        return self.first + len(self.pages)

    def since(self, block: int) -> BlockTable:
        """The table without blocks before `block`."""
        first = max(self.first, block)
        return BlockTable(first, self.pages[first - self.first :])

    def at(self, block: int) -> int:
        """Page of a block in the table."""
        assert block >= self.first
        return self.pages[block - self.first]


Tables: TypeAlias = list[BlockTable]
"""One block table per page group."""


def flat(tables: Iterable[BlockTable]) -> list[int]:
    """Pages of all tables."""
    return list(chain.from_iterable(table.pages for table in tables))


def column(tables: Iterable[BlockTable]) -> bytes:
    """uint32 column: the tables concatenated, each padded to start at block 0, of equal length."""
    rows = (np.array([NONE] * table.first + table.pages, "<u4") for table in tables)
    return b"".join(row.tobytes() for row in rows)
