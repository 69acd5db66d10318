"""KV managers over small pools."""

from __future__ import annotations

import numpy as np

from baton.kv.page_groups import PageGroups
from baton_scheduler.block_table import BlockTable
from baton_scheduler.kv.kv_manager import KVManager
from baton_scheduler.kv.page_pool import PagePool
from baton_scheduler.sequence import Sequence
from baton_scheduler.slot_table import SlotTable, StartPages


def made(
    windows: tuple[int, ...] = (0,), num_pages: int = 40, *, caching: bool = True
) -> KVManager:
    """Keys of two slots in pages of 4 tokens."""
    groups = PageGroups(windows, 4, 64)
    return KVManager(PagePool(num_pages), SlotTable(2, len(windows)), groups, caching=caching)


def hold(keys: KVManager, one: Sequence, blocks: int) -> int:
    """Give a sequence pages for so many blocks in every group."""
    own = keys.take([blocks] * len(keys.groups))
    start = StartPages([BlockTable(0, pages) for pages in own], 4)
    slot = keys.batch.add(one, 1, start, 100)
    one.place("w", slot)
    return slot


def confirm(keys: KVManager, slot: int, end: int) -> None:
    keys.confirm(np.array([slot]), np.array([end]))
