"""The contract of an attention backend, and the ragged batch that it works on."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from baton_worker.attention.buffers import Buffers
from baton_worker.attention.tree_mask import TreeMask
from baton_worker.kernels.kv_pages import KVCodes
from baton_worker.kernels.page_layout import Layout


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

    def of(self, group: int) -> AttentionBatch:
        """The step as the layers of a group see it."""
        return self.others[group - 1] if group else self

    def flat(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Row, and position in its sequence, of each new token: int64 [T] each, on the host."""
        count, start = (
            np.asarray(self.query_lens, np.int64),
            np.asarray(self.num_computed, np.int64),
        )
        rows = np.repeat(np.arange(len(count)), count)
        return rows, np.arange(len(rows)) - (np.cumsum(count) - count - start)[rows]

    @property
    def begun(self) -> Tensor:
        """int64 [any]: the pages in which a new token is the first."""
        return self.slot_mapping[self.slot_mapping % self.page_size == 0] // self.page_size

    @property
    def first(self) -> Tensor:
        """int64 [any]: the pages with which sequences begin."""
        rows = [row for row, start in enumerate(self.num_computed) if not start]
        return self.block_table[rows, 0].long()

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
    ) -> AttentionBatch:
        """As `build`, of the tables of all groups.

        Args:
            tables: int32 [groups, B, any], contiguous.
            slots: int64 [B], where in their second axis the rows are; None: in this order.
            buffers: what the tensors are views of, until the next step is built; None: memory of
                their own.
        """
        rows = _Indices(counts, starts, page_size, Buffers(device) if buffers is None else buffers)
        order = np.arange(len(counts)) if slots is None else slots
        return rows.batch([rows.select(group, t, order) for group, t in enumerate(tables)])

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
            starts: tokens of each row whose keys and values are in the cache already.
            pages: page numbers per row, ragged or padded to int32 [B, any]; entries beyond
                ceil((start + count) / page_size) are ignored.
            page_size: tokens per page.
            device: where the tensors go.
        """
        assert len(pages) == len(counts)
        rows = _Indices(counts, starts, page_size, Buffers(device))
        return rows.batch([rows.fill(pages)])


class _Indices:
    """Of the rows of one step, as arrays on the host."""

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
        """The rows `order` of a table [any, any], cut to the longest, 0 where one has no page."""
        shape, columns = (len(order), self._width), np.arange(self._width)
        at = self._buffers.array("entries", shape, np.int64)
        np.add.outer(order * table.shape[1], columns, out=at)
        pages = self._buffers.array(f"page_table {group}", shape, np.int32)
        np.take(table.reshape(-1), at, out=pages, mode="clip")
        unused = self._buffers.array("unused", shape, np.bool_)
        np.less_equal.outer(self._used, columns, out=unused)
        np.copyto(pages, 0, where=unused)
        return pages

    def fill(self, pages: Sequence[Sequence[int]] | npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Ragged or padded page numbers as one table, as `select` returns it."""
        table = self._buffers.array("page_table 0", (len(pages), self._width), np.int32)
        table[:] = 0
        for row, (numbers, count) in enumerate(zip(pages, self._used.tolist(), strict=True)):
            table[row, :count] = numbers[:count]
        return table

    def batch(self, tables: Sequence[npt.NDArray[np.int32]]) -> AttentionBatch:
        """One batch of all groups' tables, which `fill` and `select` have made."""
        row, positions = np.arange(len(self._count)), self._start
        if self._offsets[-1] != len(row):  # Somebody has more than one new token.
            first = np.repeat(self._offsets[:-1] - self._start, self._count)
            row, positions = np.repeat(row, self._count), np.arange(len(first)) - first
        place, offset = np.divmod(positions, self._page_size)
        counts, starts = tuple(self._count.tolist()), tuple(self._start.tolist())
        query_starts = self._buffers.tensor("query_starts")
        lengths = self._buffers.tensor("lengths")
        whole, *others = (
            AttentionBatch(
                query_start_loc=query_starts,
                seq_lens=lengths,
                block_table=self._buffers.tensor(f"page_table {group}"),
                slot_mapping=self._slots(group, table[row, place], offset),
                query_lens=counts,
                num_computed=starts,
                page_size=self._page_size,
            )
            for group, table in enumerate(tables)
        )
        return replace(whole, others=tuple(others)) if others else whole

    def _slots(
        self, group: int, pages: npt.NDArray[np.int32], offset: npt.NDArray[np.int64]
    ) -> Tensor:
        """Where tokens go that have these places in these pages."""
        slots = self._buffers.array(f"slots {group}", pages.shape, np.int64)
        np.multiply(pages, np.int64(self._page_size), out=slots)
        np.add(slots, offset, out=slots)
        return self._buffers.tensor(f"slots {group}")


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """The static facts of one layer's attention: what a backend accepts or refuses.

    A score is scale * q.k, bent into (-softcap, softcap), plus slopes[head] * (key's position -
    query's position); then the mask: the last `window` tokens, and of those, with a `chunk`, the
    ones in the query's own chunk of so many positions. With `sinks` or `token_sinks`, one more
    score per head, or per token and head, takes part in the softmax and has no value.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int | None
    dtype: torch.dtype
    device: torch.device
    softcap: float | None = None
    slopes: tuple[float, ...] | None = None
    """ALiBi: one per query head."""
    chunk: int | None = None
    sinks: bool = False
    token_sinks: bool = False
    latent: bool = False
    """Keys serve as values: a page holds one vector per token and key head, not two."""
    value_dim: int | None = None
    """Channels of a value where they are not `head_dim`: a page holds a key and behind it a value
    per token and key head; of `latent` keys the first so many are the value."""
    partial: bool = False
    """Results will be merged with others: `forward` tells the log-sum-exp of the scores, and rows
    may see a range of keys only."""
    tree: bool = False
    """The new tokens of a row may be a tree."""
    codes: KVCodes | None = None
    """What a page holds in place of numbers of `dtype`."""
    layout: Layout = Layout.NHD
    """The order of the numbers in a page."""
    most_keys: int | None = None
    """An index chooses so many of the `latent` keys that a token sees (see `layers.chosen`): each
    of them is then a page of its own, and what a page holds of a token goes on behind the key."""
    context: tuple[int, int] | None = None
    """(rank, size) where each of several ranks keeps every `size`th token, the first of them at
    position `rank`: what `attention.interleaved` understands."""

    @property
    def width(self) -> int:
        """Channels of a value, and of what a head puts out."""
        return self.head_dim if self.value_dim is None else self.value_dim

    @property
    def group(self) -> int:
        """Query heads that share a key head."""
        return self.num_heads // self.num_kv_heads

    def __str__(self) -> str:
        """One phrase for a log line."""
        seen = "all tokens" if self.window is None else f"the last {self.window} tokens"
        kind = f"{self.num_heads} query and {self.num_kv_heads} key heads of {self.head_dim}"
        kind += f", values of {self.value_dim}" if self.value_dim is not None else ""
        kind += ", soft-capped" if self.softcap else ""
        kind += ", with ALiBi" if self.slopes else ""
        kind += ", keys as values" if self.latent else ""
        kind += ", with sinks" if self.sinks or self.token_sinks else ""
        kind += f", at most {self.most_keys} of them" if self.most_keys else ""
        kind += ", in parts" if self.partial else ""
        kind += f", every {self.context[1]}th key" if self.context else ""
        kind += ", over trees" if self.tree else ""
        kept = f"{self.codes or ''} {self.layout if self.layout is not Layout.NHD else ''}".strip()
        kind += f", {kept} pages" if kept else ""
        seen += f" in chunks of {self.chunk}" if self.chunk else ""
        return f"{kind} over {seen}, {str(self.dtype).removeprefix('torch.')} on {self.device}"


_EVERYBODYS = {"layout", *(f.name for f in fields(AttentionSpec) if f.default is MISSING)}
"""Fields that no backend can leave unread; for layouts there is `Backend.layouts`."""


def unknown(call: AttentionSpec, understood: Collection[str]) -> str | None:
    """What a call asks for beside `_EVERYBODYS` that is not `understood`, as half a sentence."""
    others = [f for f in fields(call) if f.name not in _EVERYBODYS and f.name not in understood]
    strange = [f.name for f in others if getattr(call, f.name) != f.default]
    return f"it does not know {', '.join(strange)}" if strange else None


def fits(batch: AttentionBatch, call: AttentionSpec) -> bool:
    """Whether layers of this kind understand what a step says of its rows."""
    return (call.partial or batch.ranges is None) and (call.tree or batch.trees is None)


class Backend(Protocol):
    """One way to compute paged attention. Life cycle: `refuses` is asked once per kind of layer
    while the model is built; then, in each step, `plan` runs once per kind of layer and `forward`
    once per layer with that plan. The step's keys and values are in the pages before `forward`.
    """

    layouts: frozenset[Layout]
    """The layouts of pages that it reads in place; `choose` offers it no others."""
    capture_blocker: str | None
    """Why its decode steps cannot be captured (see `graphs`), as half a sentence; None if they can:
    then a plan for rows of one new token each serves any such step of as many rows that are not
    longer, in the memory of the same batch; `forward` waits for nothing; and neither reads entries
    of a block table beyond the keys of a row."""

    def refuses(self, call: AttentionSpec) -> str | None:
        """Why this backend cannot serve such layers, as half a sentence; None if it can."""
        ...

    def plan(self, batch: AttentionBatch, call: AttentionSpec) -> Any:
        """Whatever the layers of one kind share in this step: masks, indices."""
        ...

    def forward(
        self,
        plan: Any,
        query: Tensor,
        pages: Tensor,
        sinks: Tensor | None = None,
        lse: Tensor | None = None,
    ) -> Tensor:
        """Attend.

        Args:
            plan: what `plan` returned.
            query: [T, num_heads, head_dim], rotated, any row stride.
            pages: [num_pages, page_size, 2, num_kv_heads, head_dim], keys and values. For a
                `latent` call the third axis is 1; where values have a width of their own as well,
                and the last holds a key and then a value. With `most_keys` a view of its first
                channels. With `codes` uint8, and in place of each
                width its `row_width`. In memory they lie as the call's `layout` says, and the
                strides with them.
            sinks: [num_heads] where the call has `sinks`, [T, num_heads] where it has
                `token_sinks`, else None.
            lse: float32 [T, num_heads], contiguous; filled, where the call is `partial`, with the
                logarithm of the sum of the exponentials of what a head's softmax has seen, sinks
                included: see `attention.merge`.

        Returns:
            [T, num_heads * width]; zeros for a token whose range of keys is empty.
        """
        ...
