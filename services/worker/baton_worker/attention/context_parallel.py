"""Decode context parallelism: attention over KV whose tokens are distributed over ranks.

Ranks that would hold the same KV heads form a group of `size`; each keeps every `size`th token and
so holds `size` times as many tokens. Block tables are the same on all of them:

    a page of the block table      0 1 2 3 4 5 6 7
    what rank 0 of 2 has of it     0   2   4   6
    what rank 1 has                  1   3   5   7

Each rank gathers the queries of its group, attends to its local KV, and sends the partial results
to the ranks that own the heads, which merge them by log-sum-exp (`attention.lse_merge`).

New tokens whose positions are equal modulo `size` see a local KV that grows by one token each, like
the tokens of a row. So a row of new tokens becomes `size` rows, and any backend can attend to them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from baton_worker.attention.attention_batch import AttentionBatch
from baton_worker.attention.attention_spec import AttentionSpec
from baton_worker.attention.backend import Backend
from baton_worker.attention.lse_merge import Partial, merge

_ALL = np.iinfo(np.int32).max
Ints = npt.NDArray[np.int64]


class Peers(Protocol):
    """All ranks of a model."""

    @property
    def rank(self) -> int:
        """Rank of this process, from 0."""
        ...

    def exchange(self, parts: list[Tensor], among: range) -> list[Tensor]:
        """All-to-all among the ranks `among`; all parts have the same shape."""
        ...


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan of a step on this rank."""

    inner: Any
    """The plan of the backend."""
    order: Tensor | None
    """int64 [T]: the new tokens, row after row as the backend takes them; None: as they are."""
    is_own: Tensor
    """bool [T]: whether this rank keeps the key of a new token."""
    places: Tensor
    """int64 [T]: the slot where it goes then."""

    def slots(self, pages: Tensor) -> Tensor:
        """int64 [T]: cache slots of new keys; keys of other ranks go to the last page, which is
        unused.

        Args:
            pages: pages of this rank, [num_pages, tokens of a page on this rank, ...].
        """
        return torch.where(self.is_own, self.places, len(pages) * pages.shape[1] - 1)


class ContextParallelBackend:
    """Runs a backend on this rank's part of the KV and merges the results of all ranks.

    Args:
        backend: serves `part(call)`.
        context: group size, as in `AttentionSpec`; ranks that share KV heads are adjacent.
        peers: all ranks of the model.
    """

    capture_blocker: str | None = "its ranks wait for each other"

    def __init__(self, backend: Backend, context: tuple[int, int], peers: Peers) -> None:
        self._backend, self._peers = backend, peers
        self._rank, self._size = context
        first = peers.rank - self._rank
        self._among = range(first, first + self._size)
        self.layouts, self.launch_blocker = backend.layouts, backend.launch_blocker

    def refuses(self, call: AttentionSpec) -> str | None:
        """Refuses what the wrapped backend refuses."""
        return self._backend.refuses(part(call))

    def plan(self, batch: AttentionBatch, call: AttentionSpec) -> Plan:
        """Split the rows of a step by position."""
        assert batch.ranges is None and batch.trees is None
        rows = _Rows.of(batch, self._rank, self._size)
        device = batch.slot_mapping.device
        return Plan(
            inner=self._backend.plan(rows.batch(batch, self._size), part(call)),
            order=None if rows.ordered else torch.from_numpy(rows.order).to(device),
            is_own=batch.slot_mapping % self._size == self._rank,
            places=batch.slot_mapping // self._size,
        )

    def forward(
        self,
        plan: Plan,
        query: Tensor,
        pages: Tensor,
        sinks: Tensor | None = None,
        lse: Tensor | None = None,
    ) -> Tensor:
        """See `Backend.forward`."""
        assert lse is None, "these parts are merged here"
        queries = query.contiguous()
        everyones = torch.cat(self._peers.exchange([queries] * self._size, self._among), dim=1)
        partial = self._own_keys(plan, everyones, pages)
        packed_parts = self._peers.exchange(_for_each(partial, self._size), self._among)
        heads = query.shape[1]
        parts = [Partial(packed[:, heads:], packed[:, :heads]) for packed in packed_parts]
        return merge(parts, sinks).out.to(query.dtype)

    def _own_keys(self, plan: Plan, query: Tensor, pages: Tensor) -> Partial:
        """Partial attention of the group's queries to the KV of this rank."""
        ordered = query if plan.order is None else query[plan.order]
        lse = torch.empty(query.shape[:2], dtype=torch.float32, device=query.device)
        out = self._backend.forward(plan.inner, ordered, pages, None, lse)
        if plan.order is None:
            return Partial(out, lse)
        partial = Partial(torch.empty_like(out), torch.empty_like(lse))
        partial.out[plan.order], partial.lse[plan.order] = out, lse
        return partial


def part(call: AttentionSpec) -> AttentionSpec:
    """Parameters of the partial attention that each rank computes."""
    assert call.context is not None
    heads = call.num_heads * call.context[1]
    return replace(
        call, num_heads=heads, partial=True, sinks=False, token_sinks=False, context=None
    )


def _for_each(partial: Partial, size: int) -> list[Tensor]:
    """Partial results per owning rank, as one tensor each: float32 [T, heads + heads * width],
    log-sum-exps first."""
    pairs = zip(partial.lse.chunk(size, 1), partial.out.float().chunk(size, 1), strict=True)
    return [torch.cat(pair, dim=1) for pair in pairs]


@dataclass(frozen=True, slots=True)
class _Rows:
    """New tokens of a step, regrouped into rows whose local KV grows by one token each."""

    order: Ints
    """[T], the tokens row after row."""
    source: Ints
    """[rows], the row of the step that each comes from."""
    counts: Ints
    """[rows], tokens."""
    num_keys: Ints
    """[rows], keys that the last of them sees."""

    @classmethod
    def of(cls, batch: AttentionBatch, rank: int, size: int) -> _Rows:
        """Regroup. A token at the start of a sequence that has no local key becomes a row of its
        own."""
        rows, positions = batch.flat()
        num_keys = (positions - rank) // size + 1
        order = np.lexsort((positions, positions % size, rows))
        kinds = np.stack((rows, positions % size, num_keys == 0))[:, order]
        first = np.flatnonzero(np.append(True, (kinds[:, 1:] != kinds[:, :-1]).any(0)))
        counts = np.diff(np.append(first, len(order)))
        return cls(order, kinds[0, first], counts, num_keys[order[first + counts - 1]])

    @property
    def ordered(self) -> bool:
        """True if the order of the tokens is unchanged."""
        return bool((self.order[1:] > self.order[:-1]).all())

    def batch(self, whole: AttentionBatch, size: int) -> AttentionBatch:
        """The batch over this rank's pages. Rows without keys get length 1 and an empty range."""
        blind, device = self.num_keys == 0, whole.slot_mapping.device
        lengths = np.maximum(self.num_keys, 1)
        ranges = tuple((0, 0 if none else int(_ALL)) for none in blind) if blind.any() else None
        return AttentionBatch(
            query_start_loc=_int32(np.append(0, np.cumsum(self.counts)), device),
            seq_lens=_int32(lengths, device),
            block_table=whole.block_table[torch.from_numpy(self.source).to(device)],
            slot_mapping=whole.slot_mapping,
            query_lens=tuple(self.counts.tolist()),
            num_computed=tuple((lengths - self.counts).tolist()),
            page_size=whole.page_size // size,
            ranges=ranges,
        )


def _int32(numbers: Ints, device: torch.device) -> Tensor:
    return torch.from_numpy(numbers.astype(np.int32)).to(device)
