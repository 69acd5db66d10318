"""Pages of one worker that KV transfers read or write."""

from __future__ import annotations

from collections.abc import Iterator, KeysView

from baton_scheduler.block_hashes import group_key
from baton_scheduler.block_table import BlockTable, Tables, flat
from baton_scheduler.kv.kv_manager import KVManager
from baton_scheduler.sequence import Sequence


class TransferPages:
    """Pages by transfer number, pinned until the transfer ends."""

    def __init__(self, kv: KVManager) -> None:
        self._kv = kv
        self._pages: dict[int, list[int]] = {}

    def __iter__(self) -> Iterator[int]:
        return (page for pages in self._pages.values() for page in pages)

    def __getitem__(self, number: int) -> list[int]:
        return self._pages[number]

    @property
    def numbers(self) -> KeysView[int]:
        """Numbers of the transfers in progress."""
        return self._pages.keys()

    def pin(self, number: int, slot: int, length: int) -> Tables:
        """Pin the pages of a slot's first `length` tokens for a transfer that reads them."""
        end, batch = self._kv.num_blocks(length), self._kv.batch
        tables = [BlockTable(t.first, t.pages[: end - t.first]) for t in batch.tables(slot)]
        self._pages[number] = flat(tables)
        self._kv.pool.share(self._pages[number])
        return tables

    def prepare(self, number: int, sequence: Sequence, length: int) -> Tables:
        """Take pages for a transfer that writes the first `length` tokens of a sequence: per group
        the pages that the next token attends to, cached ones first."""
        kv, size = self._kv, self._kv.page_size
        tables = kv.since(kv.cached_prefix(sequence), length // size * size)
        kv.pool.share(flat(tables))
        new = kv.take([kv.num_blocks(length) - table.end for table in tables])
        tables = [BlockTable(t.first, t.pages + mine) for t, mine in zip(tables, new, strict=True)]
        self._pages[number] = flat(tables)
        return tables

    def adopt(self, sequence: Sequence, tables: Tables, start: int, end: int) -> None:
        """Add pages to the prefix cache after the KV of tokens start .. end - 1 has arrived in
        them."""
        pool, size = self._kv.pool, self._kv.page_size
        chain = sequence.chain(size)
        for group, table in enumerate(tables):
            for block in range(max(start // size, table.first), table.end):
                page, last = table.at(block), min(end, (block + 1) * size)
                if last % size or pool.add_hash(page, group_key(chain.at(block), group)):
                    content = chain.content(block * size, last)
                    pool.begin(page, group_key(chain.prefix(block), group), content)

    def release(self, number: int) -> None:
        """Release the pages of a transfer that has ended."""
        self._kv.pool.give(self._pages.pop(number))
