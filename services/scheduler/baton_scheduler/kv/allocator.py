"""Allocation of the pages that a sequence starts with.

0 ...... cached ..... | host pages ...... | copied ... | new, empty ......
shared with others      swapped in by the   from a page  to be computed
                        plan in which it    with the
                        enters              same start
"""

from __future__ import annotations

from collections.abc import Callable

from baton_scheduler.block_hashes import group_key
from baton_scheduler.block_table import BlockTable, Tables, flat
from baton_scheduler.kv.kv_manager import KVManager
from baton_scheduler.sequence import Sequence
from baton_scheduler.slot_table import StartPages


class Allocator:
    """Places sequences in the slot table. Their swaps and copies are kept until the plan in which
    they enter."""

    def __init__(self, kv: KVManager, worth: Callable[[int, int], bool], drafts: int = 0) -> None:
        self._kv, self._drafts = kv, drafts
        self._pool, self._batch = kv.pool, kv.batch
        self._worth = worth
        """(host pages, blocks) -> True if swapping in the pages is faster than computing the
        blocks."""

    def place(self, sequence: Sequence, gateway: int, max_model_len: int) -> tuple[int, int]:
        """Give a sequence a slot, and pages for all its known tokens, cached ones first. A windowed
        group gets pages for one window now, and more as the prompt is computed.

        Returns the slot and the number of cached tokens.
        """
        kv, size = self._kv, self._kv.page_size
        cached = kv.cached_prefix(sequence)
        num_cached = cached[0].end
        hosted = self._hosted(sequence, num_cached)
        blocks = hosted[0].end if hosted else num_cached
        tables = kv.since(cached, blocks * size)
        self._pool.share(flat(tables))
        lacking = self._lacking(sequence, tables, blocks)
        sources, more = self._fork(sequence, blocks, sum(lacking))
        self._pool.share(sources)
        new = kv.take(lacking)
        tables = [BlockTable(t.first, t.pages + mine) for t, mine in zip(tables, new, strict=True)]
        hit = blocks * size + more
        if sequence.cached is None:
            sequence.cached = min(hit, sequence.num_prompt)
        pages = StartPages(tables, size, hit, num_cached)
        slot = self._batch.add(sequence, gateway, pages, max_model_len, self._drafts)
        if more:
            self._batch.sources[slot] = sources
        if hosted:
            self._batch.pending_swap_in[slot] = _swap_pairs(hosted, new)
        return slot, hit

    def _lacking(self, sequence: Sequence, tables: Tables, block: int) -> list[int]:
        """Per group: pages to add to its table, for the blocks from `block` to the last known."""
        kv, total = self._kv, self._kv.num_blocks(sequence.num_tokens)
        return [
            kv.end(sequence, group, block, total) - table.end for group, table in enumerate(tables)
        ]

    def _hosted(self, sequence: Sequence, first: int) -> Tables:
        """Host pages, pinned, that extend the sequence's first blocks; empty if there are none, or
        if recomputing is measured to be faster."""
        host, size = self._pool.host, self._kv.page_size
        if host is None:
            return []
        most = sequence.reusable // size
        tables = host.match(sequence.chain(size), first, most, self._kv.groups)
        pages, blocks = flat(tables), tables[0].end - first
        if not blocks or not self._worth(len(pages), blocks):
            return []
        host.pin(pages)
        return tables

    def _fork(self, sequence: Sequence, block: int, needed: int) -> tuple[list[int], int]:
        """(pages, count): per group, a page that begins like a block of the sequence, and the
        number of tokens that all of these pages share with it.

        ([], 0) if there are none, or too few free pages: the sources must stay unchanged until the
        copy, besides the `needed` pages of the sequence itself.
        """
        size, index = self._kv.page_size, self._pool.index
        end = min(sequence.reusable, (block + 1) * size)
        if not self._kv.caching or end <= block * size:
            return [], 0
        chain = sequence.chain(size)
        tokens, prefix = chain.content(block * size, end), chain.prefix(block)
        groups = range(len(self._kv.groups))
        forks = [index.fork(group_key(prefix, group), tokens) for group in groups]
        pages, number = [page for page, _ in forks], min(common for _, common in forks)
        spare = self._pool.num_free - needed
        if not number or spare < sum(self._pool.references(page) == 0 for page in pages):
            return [], 0
        return pages, number

    def swaps_for(self, entering: list[int]) -> tuple[list[int], list[int]]:
        """(out, in): page pairs to swap in this plan, each a flat list."""
        host, incoming = self._pool.host, list[tuple[int, int]]()
        if host is None:
            return [], []
        for slot in entering:
            incoming += self._batch.pending_swap_in.pop(slot, [])
        host.unpin(source for source, _ in incoming)
        return host.outgoing(), [number for pair in incoming for number in pair]

    def copies(self, entering: list[int]) -> tuple[list[int], list[int]]:
        """(sources, targets): pages to copy in this plan for slots that enter now. A later plan may
        overwrite the sources."""
        sources, targets = list[int](), list[int]()
        for slot in entering:
            forked = self._batch.sources.pop(slot, [])
            if forked:
                self._pool.give(forked)
                block = (int(self._batch.num_cached_tokens[slot]) - 1) // self._kv.page_size
                sources += forked
                targets += [table.at(block) for table in self._batch.tables(slot)]
        return sources, targets

    def cancel(self, slot: int) -> None:
        """Drop the pending swaps and copies of a slot."""
        self._pool.give(self._batch.sources.pop(slot, []))
        incoming = self._batch.pending_swap_in.pop(slot, [])
        if self._pool.host is not None:
            self._pool.host.unpin(page for page, _ in incoming)


def _swap_pairs(hosted: Tables, new: list[list[int]]) -> list[tuple[int, int]]:
    """(host page, own page): the first of the new pages of each group receive its host pages."""
    groups = zip(hosted, new, strict=True)
    return [pair for table, mine in groups for pair in zip(table.pages, mine, strict=False)]
