"""The ragged batch of one step: the input of attention backends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from baton_worker.attention.buffers import Buffers
from baton_worker.attention.tree_mask import TreeMask


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    """One ragged step: B rows of new tokens, T tokens in all, each row with its own block table.

        row 0 (decode)   row 1 (prefill chunk)     row 2 (decode)
        [t]              [t  t  t  t  t]           [t]              T = 7, query_starts 0 1 6 7
         start 40         start 16                  start 7          lengths 41 21 8

    `counts` and `starts` are on the host, so that a backend can plan without waiting for a device.
    """

    query_start_loc: Tensor
    """int32 [B + 1]: offset of each row on the flat token axis."""
    seq_lens: Tensor
    """int32 [B]: length of the KV visible to the last new token of each row."""
    block_table: Tensor
    """int32 [B, pages of the longest row], padded with 0."""
    slot_mapping: Tensor
    """int64 [T]: page * page_size + offset, where the key and value of each new token go."""
    query_lens: tuple[int, ...]
    """New tokens per row."""
    num_computed: tuple[int, ...]
    """Tokens of each row that are in the cache already."""
    page_size: int
    others: tuple[AttentionBatch, ...] = ()
    """The same step for the second and further KV cache groups, which use other pages."""
    ranges: tuple[tuple[int, int], ...] | None = None
    """Per row, the range [from, to) of its KV that takes part; None: all. Supported only by
    `partial` calls."""
    trees: TreeMask | None = None
    """Tree mask among the new tokens; None: causal. Supported only by calls with `tree`."""
    last_keys: Tensor | None = None
    """int32 [T]: position of the last key that each new token sees, at least its own and at most
    that of the last new token of its row; None: its own. Supported only by calls with `spans`."""
    started_pages: Tensor | None = None
    """int64 [any]: pages whose first token is a new one. None: no page of this batch is written."""
    first: Tensor | None = None
    """int64 [any]: first pages of sequences that begin."""
    captured: bool = False
    """Whether a step is captured for these rows: its tensors have the contents of other steps
    later."""

    def of(self, group: int) -> AttentionBatch:
        """The batch with the block tables of one page group."""
        return self.others[group - 1] if group else self

    def flat(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """(row, position in its sequence) of each new token: int64 [T] each, on the host."""
        count, start = (
            np.asarray(self.query_lens, np.int64),
            np.asarray(self.num_computed, np.int64),
        )
        rows = np.repeat(np.arange(len(count)), count)
        return rows, np.arange(len(rows)) - (np.cumsum(count) - count - start)[rows]

    def with_last_keys(self, last_keys: npt.NDArray[np.int64]) -> AttentionBatch:
        """The batch with `last_keys`, int64 [T], in all page groups."""
        ends = torch.from_numpy(last_keys.astype(np.int32)).to(self.slot_mapping.device)
        others = tuple(replace(other, last_keys=ends) for other in self.others)
        return replace(self, last_keys=ends, others=others)

    def over(self, trees: TreeMask) -> AttentionBatch:
        """The batch with a tree mask, in all page groups."""
        others = tuple(replace(other, trees=trees) for other in self.others)
        return replace(self, trees=trees, others=others)

    @classmethod
    def build_all(
        cls,
        counts: Sequence[int] | npt.NDArray[np.int64],
        starts: Sequence[int] | npt.NDArray[np.int64],
        tables: npt.NDArray[np.int32],
        page_size: int,
        device: torch.device,
        *,
        slots: npt.NDArray[np.int64] | None = None,
        buffers: Buffers | None = None,
        last_keys: npt.NDArray[np.int64] | None = None,
    ) -> AttentionBatch:
        """`build` for the block tables of all page groups.

        Args:
            tables: int32 [groups, B, any], contiguous.
            slots: int64 [B], index of each row in the second axis; None: rows are in order.
            buffers: the returned tensors are views of them until the next step is built; None:
                allocate.
            last_keys: int64 [T], see the field.
        """
        rows = _Indices(counts, starts, page_size, Buffers(device) if buffers is None else buffers)
        order = np.arange(len(counts)) if slots is None else slots
        batch = rows.batch([rows.select(group, t, order) for group, t in enumerate(tables)])
        return batch if last_keys is None else batch.with_last_keys(last_keys)

    @classmethod
    def of_buffers(
        cls,
        buffers: Buffers,
        counts: tuple[int, ...],
        starts: tuple[int, ...],
        page_size: int,
        groups: int,
    ) -> AttentionBatch:
        """The batch whose `array_names` are written in these buffers; see the fields."""
        query_starts, lengths = buffers.tensor("query_starts"), buffers.tensor("lengths")
        whole, *others = (
            cls(
                query_start_loc=query_starts,
                seq_lens=lengths,
                block_table=buffers.tensor(f"page_table {group}"),
                slot_mapping=buffers.tensor(f"slots {group}"),
                started_pages=buffers.tensor(f"started {group}"),
                first=buffers.tensor(f"first {group}"),
                query_lens=counts,
                num_computed=starts,
                page_size=page_size,
            )
            for group in range(groups)
        )
        return replace(whole, others=tuple(others)) if others else whole

    @staticmethod
    def array_names(groups: int) -> tuple[str, ...]:
        """Names of the arrays in the buffers of a batch of so many page groups."""
        names = ("page_table", "slots", "started", "first")
        each = (f"{name} {group}" for group in range(groups) for name in names)
        return ("query_starts", "lengths", *each)

    @classmethod
    def build(
        cls,
        counts: Sequence[int],
        starts: Sequence[int],
        pages: Sequence[Sequence[int]] | npt.NDArray[np.int32],
        page_size: int,
        device: torch.device,
    ) -> AttentionBatch:
        """Compute the step's indices once, on the host.

        Args:
            counts: new tokens per row, each at least 1.
            starts: tokens of each row whose KV is already in the cache.
            pages: page numbers per row, ragged or padded to int32 [B, any]; entries beyond
                ceil((start + count) / page_size) are ignored.
            page_size: tokens per page.
            device: device of the tensors.
        """
        assert len(pages) == len(counts)
        rows = _Indices(counts, starts, page_size, Buffers(device))
        return rows.batch([rows.fill(pages)])


class _Indices:
    """Indices of the rows of one step, as host arrays."""

    def __init__(
        self,
        counts: Sequence[int] | npt.NDArray[np.int64],
        starts: Sequence[int] | npt.NDArray[np.int64],
        page_size: int,
        buffers: Buffers,
    ) -> None:
        self._count, self._start = np.asarray(counts, np.int64), np.asarray(starts, np.int64)
        rows = len(self._count)
        assert rows == len(self._start) and self._count.min(initial=1) > 0
        self._page_size, self._buffers = page_size, buffers
        lengths = buffers.array("lengths", (rows,), np.int32)
        np.add(self._start, self._count, out=lengths, casting="same_kind")
        self._offsets = buffers.array("query_starts", (rows + 1,), np.int32)
        self._offsets[0] = 0
        np.cumsum(self._count, out=self._offsets[1:])
        self._used = -(-lengths // page_size)
        """Pages of each row."""
        self._width = int(self._used.max(initial=0))

    def select(
        self, group: int, table: npt.NDArray[np.int32], order: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int32]:
        """The rows `order` of a table [any, any], cut to the longest row, padded with 0."""
        shape, columns = (len(order), self._width), np.arange(self._width)
        at = self._buffers.scratch("entries", shape, np.int64)
        np.add.outer(order * table.shape[1], columns, out=at)
        pages = self._buffers.array(f"page_table {group}", shape, np.int32)
        np.take(table.reshape(-1), at, out=pages, mode="clip")
        unused = self._buffers.scratch("unused", shape, np.bool_)
        np.less_equal.outer(self._used, columns, out=unused)
        np.copyto(pages, 0, where=unused)
        return pages

    def fill(self, pages: Sequence[Sequence[int]] | npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Ragged or padded page numbers as one padded table."""
        table = self._buffers.array("page_table 0", (len(pages), self._width), np.int32)
        table[:] = 0
        for row, (numbers, count) in enumerate(zip(pages, self._used.tolist(), strict=True)):
            table[row, :count] = numbers[:count]
        return table

    def batch(self, tables: Sequence[npt.NDArray[np.int32]]) -> AttentionBatch:
        """Build the batch from the padded tables of all groups."""
        row, positions = np.arange(len(self._count)), self._start
        if self._offsets[-1] != len(row):  # Some row has more than one new token.
            first = np.repeat(self._offsets[:-1] - self._start, self._count)
            row, positions = np.repeat(row, self._count), np.arange(len(first)) - first
        place, offset = np.divmod(positions, self._page_size)
        counts, starts = tuple(self._count.tolist()), tuple(self._start.tolist())
        starting, sequences = np.flatnonzero(offset == 0), np.flatnonzero(self._start == 0)
        for group, table in enumerate(tables):
            pages = table[row, place]
            self._write_slots(group, pages, offset)
            self._write(f"started {group}", pages[starting])
            self._write(f"first {group}", table[sequences, 0])
        return AttentionBatch.of_buffers(
            self._buffers, counts, starts, self._page_size, len(tables)
        )

    def _write(self, name: str, pages: npt.NDArray[np.int32]) -> None:
        self._buffers.array(name, pages.shape, np.int64)[...] = pages

    def _write_slots(
        self, group: int, pages: npt.NDArray[np.int32], offset: npt.NDArray[np.int64]
    ) -> None:
        """Cache slots (page * page_size + offset) of tokens."""
        slots = self._buffers.array(f"slots {group}", pages.shape, np.int64)
        np.multiply(pages, np.int64(self._page_size), out=slots)
        np.add(slots, offset, out=slots)
