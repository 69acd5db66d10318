"""What captured steps read: one piece of memory for all sizes, written before each replay."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from baton_worker.attention import AttentionBatch
from baton_worker.graphs.choice import Sizes
from baton_worker.kv import KVCache


class Inputs:
    """A step of as many rows as the largest size; smaller sizes read its front.

        row      0 ... R - 1      R ... size - 1
        holds    the step         token 0 at position 0 of the spare page

    Padding writes its key to the spare page and reads that one alone: it touches no page of a
    sequence. Entries of a block table behind those of the step hold what longer rows have left
    there; a backend that can be captured does not read them.

    Args:
        cache: whose first spare page is for the padding.
        sizes: what is captured.
        device: where steps run.
    """

    def __init__(self, cache: KVCache, sizes: Sizes, device: torch.device) -> None:
        rows, groups = sizes.rows[-1], len(cache.groups.windows)
        width = -(-sizes.length // cache.page_size)
        self._cache, self._sizes, self._page = cache, sizes, cache.num_pages
        full = partial(torch.full, dtype=torch.int64, device=device)
        self.tokens, self.positions = full((rows,), 0), full((rows,), 0)
        """int64 [rows] each"""
        self._slots = full((groups, rows), self._page * cache.page_size)
        full = partial(torch.full, dtype=torch.int32, device=device)
        self._lengths, self._tables = full((rows,), 1), full((groups, rows, width), self._page)
        self._starts = torch.arange(rows + 1, dtype=torch.int32, device=device)
        self._filled = 0
        """Rows in front that hold a step and not padding."""

    def batch(self, rows: int) -> AttentionBatch:
        """The step as attention sees it, padding included. What is on the host says that every row
        is as long as any may be: a plan that is made for this one serves them all."""
        first, *others = (
            AttentionBatch(
                query_starts=self._starts[: rows + 1],
                lengths=self._lengths[:rows],
                page_table=table[:rows],
                slots=slots[:rows],
                counts=(1,) * rows,
                starts=(self._sizes.length - 1,) * rows,
                page_size=self._cache.page_size,
            )
            for slots, table in zip(self._slots, self._tables, strict=True)
        )
        return replace(first, others=tuple(others))

    def write(self, tokens: Tensor, positions: Tensor, batch: AttentionBatch) -> None:
        """Put in a step of one new token per row; the rows behind it are padding."""
        rows = len(batch.counts)
        self.tokens[:rows].copy_(tokens)
        self.positions[:rows].copy_(positions)
        self._lengths[:rows].copy_(batch.lengths)
        for group, (slots, table) in enumerate(zip(self._slots, self._tables, strict=True)):
            part = batch.of(group)
            slots[:rows].copy_(part.slots)
            table[:rows, : part.page_table.shape[1]].copy_(part.page_table)
        self._pad(rows)

    def try_out(self, size: int) -> int:
        """Put in rows of several lengths, at most `size`, that write to the spare page alone, each
        at a place of its own. Returns how many."""
        rows, first = min(size, self._cache.page_size), self._page * self._cache.page_size
        order = torch.arange(rows, device=self.positions.device).flip(0)
        self.tokens[:rows] = order % 2
        self.positions[:rows], self._lengths[:rows] = order, order + 1
        self._slots[:, :rows], self._tables[:, :rows, 0] = first + order, self._page
        self._filled = self._sizes.rows[-1]
        return rows

    def _pad(self, rows: int) -> None:
        """Make padding of the rows that the last step had and this one has not."""
        if rows < self._filled:
            left = slice(rows, self._filled)
            self.tokens[left] = self.positions[left] = 0
            self._lengths[left] = 1
            self._slots[:, left] = self._page * self._cache.page_size
            self._tables[:, left, 0] = self._page
        self._filled = rows
