"""Input buffers of captured steps: one set for all sizes, written before each replay."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import chain

import torch
from torch import Tensor

from baton_worker.attention import AttentionBatch
from baton_worker.kernels.cpu.call_recorder import Extent
from baton_worker.kv_cache import KVCache


class Inputs:
    """Buffers for a step of at most `most` tokens and rows; smaller steps use the front. Block
    table entries beyond those of the step are stale; a backend that can be captured does not read
    them. Before the first step all tokens are token 0 at position 0 of the spare page.

    Args:
        cache: its spare pages, one of each group if there are as many, take the KV of padding.
        most: tokens and rows.
        length: maximum tokens of a row, new ones included.
        device: device of the steps.
    """

    def __init__(self, cache: KVCache, most: Extent, length: int, device: torch.device) -> None:
        groups, width = len(cache.groups.windows), -(-length // cache.page_size)
        self._length, self._page_size = length, cache.page_size
        assert cache.spare, "padding needs a page"
        # Groups share memory, in which layers of one overwrite what those of another have written.
        pages = [cache.num_pages + min(group, cache.spare - 1) for group in range(groups)]
        self._page = torch.tensor(pages, dtype=torch.int32)[:, None].to(device)
        """Spare pages, int32 [groups, 1]."""
        self._spare = (torch.tensor(pages)[:, None] * cache.page_size).to(device)
        """The first slots of those pages."""
        full = partial(torch.full, dtype=torch.int64, device=device)
        self.tokens, self.positions = full((most.tokens,), 0), full((most.tokens,), 0)
        """int64 [tokens] each"""
        self._slots = self._spare.repeat(1, most.tokens)
        full = partial(torch.full, dtype=torch.int32, device=device)
        self._lengths = full((most.rows,), 1)
        self._tables = self._page[:, None].repeat(1, most.rows, width)
        self._starts = torch.arange(most.rows + 1, dtype=torch.int32, device=device)
        pairs = chain.from_iterable(zip(self._slots, self._tables, strict=True))
        buffers = (self.tokens, self.positions, self._lengths, *pairs)
        # Between two replays numpy copies a few numbers in half of the time of torch.
        self._fronts = [x.numpy() if device.type == "cpu" else x for x in buffers]

    def _view(self, counts: tuple[int, ...]) -> AttentionBatch:
        """The attention batch for rows with this many new tokens. Host fields give every row the
        maximum length, so a plan made for it serves every step.
        """
        rows, tokens = len(counts), sum(counts)
        first, *others = (
            AttentionBatch(
                query_start_loc=self._starts[: rows + 1],
                seq_lens=self._lengths[:rows],
                block_table=table[:rows],
                slot_mapping=slots[:tokens],
                query_lens=counts,
                num_computed=tuple(self._length - count for count in counts),
                page_size=self._page_size,
                captured=True,
            )
            for slots, table in zip(self._slots, self._tables, strict=True)
        )
        return replace(first, others=tuple(others))

    def write(self, tokens: Tensor, positions: Tensor, batch: AttentionBatch) -> None:
        """Put in a step."""
        step = [tokens, positions, batch.seq_lens]
        for part in (batch, *batch.others):
            step += part.slot_mapping, part.block_table
        for buffer, values in zip(self._fronts, step, strict=True):
            front = tuple(map(slice, values.shape))
            if isinstance(buffer, Tensor):
                buffer[front].copy_(values)
            else:
                buffer[front] = values.numpy()


class DecodeInputs(Inputs):
    """A step of one new token per row, with as many rows as the largest captured size.

        row      0 ... R - 1      R ... size - 1
        holds    the step         token 0 at position 0 of the spare page

    Padding rows write their KV to the spare page and read only that: sequences are unaffected.
    """

    def __init__(self, cache: KVCache, rows: int, length: int, device: torch.device) -> None:
        super().__init__(cache, Extent.decode(rows), length, device)
        self._rows, self._filled = rows, 0
        """Rows in all, and those in front that hold a step and not padding."""

    def batch(self, rows: int) -> AttentionBatch:
        """The attention batch, padding included."""
        return self._view((1,) * rows)

    def write(self, tokens: Tensor, positions: Tensor, batch: AttentionBatch) -> None:
        """Write a step; the rows after it become padding."""
        super().write(tokens, positions, batch)
        self._pad(len(batch.query_lens))

    def try_out(self, size: int) -> int:
        """Write rows of several lengths, at most `size` rows, that write only to the spare page,
        each to its own slot. Returns their number."""
        rows = min(size, self._page_size)
        order = torch.arange(rows, device=self.positions.device).flip(0)
        self.tokens[:rows] = order % 2
        self.positions[:rows], self._lengths[:rows] = order, order + 1
        self._slots[:, :rows], self._tables[:, :rows, 0] = self._spare + order, self._page
        self._filled = self._rows
        return rows

    def _pad(self, rows: int) -> None:
        """Turn rows of the last step that this one lacks into padding."""
        if rows < self._filled:
            padding = slice(rows, self._filled)
            self.tokens[padding] = self.positions[padding] = 0
            self._lengths[padding] = 1
            self._slots[:, padding] = self._spare
            self._tables[:, padding, 0] = self._page
        self._filled = rows


class MixedInputs(Inputs):
    """A step of any number of new tokens per row, padded to a captured number of tokens.

        row      0 ... R - 1   R                          R + 1 ... rows
        holds    the step      tokens 0 of the spare page  nothing

    The row of padding has as many tokens as the step lacks, and sees only the spare page.
    """

    def __init__(
        self, cache: KVCache, tokens: int, rows: int, length: int, device: torch.device
    ) -> None:
        super().__init__(cache, Extent(tokens, rows + 1), length, device)
        self._most_rows = rows

    def rows(self, size: int) -> int:
        """Most rows of a step of so many tokens, the row of padding not counted."""
        return min(size - 2, self._most_rows)

    def of(self, size: int) -> AttentionBatch:
        """The attention batch of so many tokens. Its host fields have rows of one token and one of
        the others: a plan made for it serves any rows."""
        rows = self.rows(size)
        return self._view((1,) * rows + (size - rows,))

    def fill(self, tokens: Tensor, positions: Tensor, batch: AttentionBatch, size: int) -> None:
        """Write a step; what it lacks becomes padding."""
        super().write(tokens, positions, batch)
        count, rows = len(tokens), len(batch.query_lens)
        self._starts[: rows + 1].copy_(batch.query_start_loc)
        self.pad(size, count, rows)

    def pad(self, size: int, count: int = 0, rows: int = 0) -> None:
        """Padding behind so many tokens of so many rows: every token belongs to a row."""
        self.tokens[count:size] = self.positions[count:size] = 0
        self._slots[:, count:size] = self._spare
        self._starts[rows + 1 : self.rows(size) + 2] = size
        self._lengths[rows] = size - count
        self._tables[:, rows] = self._page


class RaggedInputs(Inputs):
    """A step of any number of new tokens per row. There is no padding: a replay gets the actual
    numbers of tokens and rows."""

    def batch(self, extent: Extent) -> AttentionBatch:
        """The attention batch of these numbers of tokens and rows; each row has a token."""
        each, more = divmod(extent.tokens, extent.rows)
        return self._view((each + 1,) * more + (each,) * (extent.rows - more))

    def write(self, tokens: Tensor, positions: Tensor, batch: AttentionBatch) -> None:
        """Put in a step."""
        super().write(tokens, positions, batch)
        self._starts[: len(batch.query_start_loc)].copy_(batch.query_start_loc)

    def try_out(self, most: Extent) -> Extent:
        """Write rows of one, two, three ... tokens that write only to the spare page, each token to
        its own slot; later rows attend to earlier ones. Returns the extent."""
        tokens, counts = min(most.tokens, self._page_size), list[int]()
        while sum(counts) < tokens:
            remaining = tokens - sum(counts)
            counts.append(
                remaining if len(counts) + 1 == most.rows else min(len(counts) + 1, remaining)
            )
        ends, rows = torch.tensor(counts).cumsum(0), len(counts)
        order = torch.arange(tokens, device=self.positions.device)
        self.tokens[:tokens], self.positions[:tokens] = order % 2, order
        self._starts[0], self._starts[1 : rows + 1], self._lengths[:rows] = 0, ends, ends
        self._slots[:, :tokens], self._tables[:, :rows, 0] = self._spare + order, self._page
        return Extent(tokens, rows)
