"""KV manager of one worker: pages of the running sequences, and their page hashes.

block          0      1      2      3      4
            |hashed|hashed|hashed| full,| part |         a page in every page group
                                    ^ hashed once the result of the step that filled it arrives
                                           ^ indexed by its first tokens once the sequence leaves
"""

from __future__ import annotations

from itertools import islice

import numpy as np

from baton.kv.page_groups import PageGroups
from baton_scheduler.block_hashes import group_key
from baton_scheduler.block_table import BlockTable, Tables
from baton_scheduler.kv.page_pool import PagePool
from baton_scheduler.sequence import Sequence
from baton_scheduler.slot_table import Ints, SlotTable


class KVManager:
    """Pages of a batch: prefix lookup, hashing of full pages, freeing."""

    def __init__(
        self, pool: PagePool, batch: SlotTable, groups: PageGroups, *, caching: bool
    ) -> None:
        self.pool, self.batch, self.groups = pool, batch, groups
        self.page_size = groups.page_size
        self.caching = caching
        """Prefix caching is enabled."""

    def num_blocks(self, num_tokens: int) -> int:
        """Number of blocks for `num_tokens` tokens; each takes a page in every group."""
        return -(-num_tokens // self.page_size)

    def cached_prefix(self, sequence: Sequence) -> Tables:
        """Pages of the longest cached prefix of a sequence, without its last token, that the next
        token attends to."""
        if not self.caching:
            return [BlockTable(0, []) for _ in self.groups.windows]
        most = sequence.reusable // self.page_size
        return self.pool.index.cached_prefix(sequence.chain(self.page_size), most, self.groups)

    def num_cached_tokens(self, sequence: Sequence) -> int:
        """Number of leading tokens of the sequence that are cached."""
        return self.cached_prefix(sequence)[0].end * self.page_size

    def since(self, tables: Tables, length: int) -> Tables:
        """The part of these block tables that a token at position `length` attends to."""
        firsts = (self.groups.first(group, length) for group in range(len(self.groups)))
        return [table.since(first) for table, first in zip(tables, firsts, strict=True)]

    def end(self, sequence: Sequence, group: int, known: int, total: int) -> int:
        """End of the range of blocks that a sequence gets pages for when placed, with `known`
        cached blocks: one window's worth, or all `total` blocks."""
        length = known * self.page_size
        return total if sequence.single_step else self.groups.end(group, length, total)

    def take(self, counts: list[int]) -> list[list[int]]:
        """Take new pages, `counts[group]` for each group."""
        if len(counts) == 1:
            return [self.pool.take(counts[0])]
        pages = iter(self.pool.take(sum(counts)))
        return [list(islice(pages, count)) for count in counts]

    def lacking(self, slot: int, blocks: int) -> list[int]:
        """Number of pages per group that a sequence lacks to have `blocks` blocks."""
        return [max(0, blocks - table.end) for table in self.batch.tables(slot)]

    def grow(self, slot: int, counts: list[int]) -> list[list[int]]:
        """Append new pages to a sequence, `counts[group]` for each group."""
        pages = self.take(counts)
        self.batch.grow(slot, pages, self.page_size)
        return pages

    def grow_each(self, slots: list[int]) -> list[int]:
        """With one page group: append one page to each of these slots, in this order."""
        pages = self.pool.take_each(len(slots))
        self.batch.grow_each(slots, pages, self.page_size)
        return pages

    def confirm(self, slots: Ints, ends: Ints) -> None:
        """Record that the KV of these slots is in pages up to these positions: hash the pages that
        became full."""
        batch, num_known = self.batch, self.batch.num_known.take(slots)
        # A step that completes the prompt may end beyond it, with the tokens that it yields.
        prefilled = (ends >= num_known) & (batch.num_confirmed.take(slots) < num_known)
        batch.num_confirmed[slots] = ends
        if not self.caching:
            return
        full, before = ends // self.page_size, batch.num_hashed_blocks.take(slots)
        fresh = np.flatnonzero(full > before)
        columns = (column.take(fresh).tolist() for column in (slots, before, full))
        for slot, first, count in zip(*columns, strict=True):
            self._hash_blocks(slot, first, count)
        batch.num_hashed_blocks[slots[fresh]] = full[fresh]
        for slot in slots[prefilled].tolist():
            self.keep_tail(slot)
            batch.at(slot).prompt_cached = True

    def _hash_blocks(self, slot: int, first: int, count: int) -> None:
        """Add blocks first .. count - 1 of a slot to the prefix cache."""
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
        """Index the last, partial page of a slot by its confirmed tokens, so that it can be
        copied."""
        size, end = self.page_size, int(self.batch.num_confirmed[slot])
        block = end // size
        if self.caching and end % size:
            chain = self.batch.at(slot).chain(size)
            prefix, content = chain.prefix(block), chain.content(block * size, end)
            for group, table in enumerate(self.batch.tables(slot)):
                self.pool.begin(table.at(block), group_key(prefix, group), content)

    def free_outside_window(self, slack: int) -> None:
        """Free the pages that left their window, except those within `slack` more tokens.

        Positions are those confirmed by results, so no plan in flight reads such a page and it can
        be overwritten at once. It has been hashed by then, and stays cached until it is evicted.
        """
        batch, size = self.batch, self.page_size
        for group in self.groups.windowed:
            window_start = batch.num_confirmed + 1 - self.groups.windows[group] - slack
            # Keep the last page, even with a window of one token.
            unseen = np.minimum(np.maximum(window_start, 0), batch.capacity - 1) // size
            dropped = batch.dropped[group]
            for slot in np.flatnonzero(batch.sent & (unseen > dropped)).tolist():
                self.pool.give(batch.drop(slot, group, int(unseen[slot] - dropped[slot])))
