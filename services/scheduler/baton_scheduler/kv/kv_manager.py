"""Which pages hold whose keys on one worker, by what names others find them, who needs more.

block          0      1      2      3      4
            | named| named| named| full,| part |         a page in every group of layers
                                    ^ gets its name when the step that filled it is settled
                                           ^ found by what it begins with once its owner leaves
"""

from __future__ import annotations

from itertools import islice

import numpy as np

from baton.kv.page_groups import PageGroups
from baton_scheduler.kv.block_table import BlockTable, Tables
from baton_scheduler.kv.page_pool import PagePool
from baton_scheduler.kv.prefix_cache import group_key
from baton_scheduler.sequence import Sequence
from baton_scheduler.slot_table import Ints, SlotTable


class KVManager:
    """The pages of a batch: what is known before, what is learned, what is let go."""

    def __init__(
        self, pool: PagePool, batch: SlotTable, groups: PageGroups, *, caching: bool
    ) -> None:
        self.pool, self.batch, self.groups = pool, batch, groups
        self.page_size = groups.page_size
        self.caching = caching
        """Pages are kept for later sequences with the same beginning."""

    def num_blocks(self, num_tokens: int) -> int:
        """Blocks that hold the keys of so many tokens: of each, a page in every group."""
        return -(-num_tokens // self.page_size)

    def known(self, sequence: Sequence) -> Tables:
        """Pages of the longest known prefix of a sequence, less its last token: those that the
        next token sees."""
        if not self.caching:
            return [BlockTable(0, []) for _ in self.groups.windows]
        most = sequence.reusable // self.page_size
        return self.pool.index.known(sequence.chain(self.page_size), most, self.groups)

    def known_tokens(self, sequence: Sequence) -> int:
        """Tokens of the sequence that are in known pages."""
        return self.known(sequence)[0].end * self.page_size

    def since(self, tables: Tables, length: int) -> Tables:
        """Of these pages, those that a token at a position sees."""
        firsts = (self.groups.first(group, length) for group in range(len(self.groups)))
        return [table.since(first) for table, first in zip(tables, firsts, strict=True)]

    def end(self, sequence: Sequence, group: int, known: int, total: int) -> int:
        """The block before which a sequence, so many of whose blocks are known, gets pages as it is
        placed: a window's worth, or all that it has."""
        length = known * self.page_size
        return total if sequence.whole else self.groups.end(group, length, total)

    def take(self, counts: list[int]) -> list[list[int]]:
        """New pages, so many of each group."""
        if len(counts) == 1:
            return [self.pool.take(counts[0])]
        pages = iter(self.pool.take(sum(counts)))
        return [list(islice(pages, count)) for count in counts]

    def lacking(self, slot: int, blocks: int) -> list[int]:
        """Per group, how many pages a sequence lacks to have so many blocks."""
        return [max(0, blocks - table.end) for table in self.batch.tables(slot)]

    def grow(self, slot: int, counts: list[int]) -> list[list[int]]:
        """Give a sequence its next pages, so many in each group."""
        pages = self.take(counts)
        self.batch.grow(slot, pages, self.page_size)
        return pages

    def grow_each(self, slots: list[int]) -> list[int]:
        """Where there is one group: give each of these sequences its next page, in this order."""
        pages = self.pool.take_each(len(slots))
        self.batch.grow_each(slots, pages, self.page_size)
        return pages

    def learn(self, slots: Ints, ends: Ints) -> None:
        """The keys of these slots are in pages up to these positions: name the full ones."""
        batch = self.batch
        batch.num_confirmed[slots] = ends
        if not self.caching:
            return
        full, before = ends // self.page_size, batch.num_hashed_blocks.take(slots)
        fresh = np.flatnonzero(full > before)
        columns = (column.take(fresh).tolist() for column in (slots, before, full))
        for slot, first, count in zip(*columns, strict=True):
            self._name(slot, first, count)
        batch.num_hashed_blocks[slots[fresh]] = full[fresh]
        for slot in slots[ends == batch.num_known.take(slots)].tolist():
            self.keep_tail(slot)
            batch.at(slot).begun = True

    def _name(self, slot: int, first: int, count: int) -> None:
        """Make blocks first .. count - 1 of a slot known."""
        batch, fill = self.batch, self.pool.fill
        chain = batch.at(slot).chain(self.page_size)
        if self.groups.plain:
            pages = batch.pages[slot][0]
            for block in range(first, count):
                fill(pages[block], *chain.link(block))
            return
        for group, pages in enumerate(batch.pages[slot]):
            dropped = int(batch.dropped[group, slot])
            for block in range(max(first, dropped), count):
                hash, prefix, tokens = chain.link(block)
                fill(
                    pages[block - dropped], group_key(hash, group), group_key(prefix, group), tokens
                )

    def keep_tail(self, slot: int) -> None:
        """The last page of what was settled can be copied from now on, up to there."""
        size, end = self.page_size, int(self.batch.num_confirmed[slot])
        block = end // size
        if self.caching and end % size:
            chain = self.batch.at(slot).chain(size)
            prefix, content = chain.at(block - 1), chain.content(block * size, end)
            for group, table in enumerate(self.batch.tables(slot)):
                self.pool.begin(table.at(block), group_key(prefix, group), content)

    def shed(self, slack: int) -> None:
        """Give back the pages that no token to come can see, but for `slack` tokens more.

        By what was settled, not by what is planned: no plan in flight sees such a page either, so
        anybody may write to it at once. And it has its name by then: whoever has the same prefix
        finds it until it makes room.
        """
        batch, size = self.batch, self.page_size
        for group in self.groups.windowed:
            seen = batch.num_confirmed + 1 - self.groups.windows[group] - slack
            # The last page stays, although the one token of a window of one does not see it.
            unseen = np.minimum(np.maximum(seen, 0), batch.capacity - 1) // size
            dropped = batch.dropped[group]
            for slot in np.flatnonzero(batch.sent & (unseen > dropped)).tolist():
                self.pool.give(batch.drop(slot, group, int(unseen[slot] - dropped[slot])))
