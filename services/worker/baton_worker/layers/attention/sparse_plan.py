"""Sparse attention to indexer-selected KV (DeepSeek-V3.2, arXiv:2512.02556).

A token with at most `most_keys` visible keys attends to all of them in its original row. Each later
token becomes a row of its own whose block table has page size 1 and lists the selected slots. No
latent is copied, and the cost is `most_keys` latents per token at any text length.

    position       0 .. most_keys - 1       most_keys, ...
    rows           as in the step           one per token
    block table    pages                    slots of the chosen keys, the earliest first

The path of a token depends on its position alone, and the indexer scores each token separately, so
neither chunk boundaries nor batch composition changes a bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from baton_worker.attention import AttentionBatch, AttentionSpec, Backend

BLOCK = 64
"""Number of keys scored together."""
_ROWS = 64
"""Maximum rows per attention call: bounds the memory of backends that copy KV."""


@dataclass(frozen=True, slots=True)
class Late:
    """Late tokens, which see more keys than they may attend to: S tokens in R rows, by position."""

    tokens: Tensor
    """int64 [S], on the flat token axis."""
    positions: Tensor
    """int64 [S]"""
    rows: Tensor
    """int64 [S], row indices into `slots`."""
    slots: Tensor
    """int64 [R, a multiple of `BLOCK`]: slots of a row's keys by position; arbitrary past the
    end."""
    lengths: tuple[int, ...]
    """Number of visible keys per late token, ascending."""

    def parts(self, most: int) -> Iterator[tuple[slice, int]]:
        """Yield slices of tokens with the number of key blocks of their last token: at most `most`
        blocks in total, but at least one token."""
        first = 0
        while first < len(self.lengths):
            count = max(1, most // _blocks(self.lengths[first]))
            end = min(first + count, len(self.lengths))
            yield slice(first, end), _blocks(self.lengths[end - 1])
            first = end


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of one step."""

    call: AttentionSpec
    early: tuple[Tensor | None, Any] | None
    """Tokens that attend to all visible keys (None: all tokens of the step) and the backend's plan
    for them; None if there are no such tokens."""
    late: Late | None
    chosen: Tensor | None = None
    """int32 [S, most_keys]: selected slots per late token, by position."""


class Chosen:
    """Sparse backend on top of a paged backend."""

    def __init__(self, inner: Backend) -> None:
        self._inner, self.layouts = inner, inner.layouts
        self.capture_blocker: str | None = "the host waits for the keys that an index chooses"
        self.launch_blocker = inner.launch_blocker

    def refuses(self, call: AttentionSpec) -> str | None:
        """The reason given by the underlying backend, if it refuses."""
        return self._inner.refuses(call)

    def plan(self, batch: AttentionBatch, call: AttentionSpec) -> Plan:
        """Split the tokens by position into early and late."""
        assert batch.trees is None and batch.ranges is None and call.most_keys is not None
        early, late = _early(batch, call.most_keys), _late(batch, call.most_keys)
        if early is None:
            return Plan(call, None, late)
        tokens, rows = early
        return Plan(call, (tokens, self._inner.plan(rows, call)), late)

    def forward(
        self,
        plan: Plan,
        query: Tensor,
        pages: Tensor,
        sinks: Tensor | None = None,
        lse: Tensor | None = None,
    ) -> Tensor:
        """See `Backend.forward`; `plan.chosen` must be set for late tokens."""
        assert sinks is None and lse is None
        if plan.early is not None and plan.late is None:
            return self._inner.forward(plan.early[1], query, pages)
        out = query.new_empty((len(query), query.shape[1] * plan.call.width))
        if plan.early is not None:
            tokens, rows = plan.early
            assert tokens is not None
            out[tokens] = self._inner.forward(rows, query[tokens], pages)
        self._attend(plan, query, pages.view(-1, 1, *pages.shape[2:]), out)
        return out

    def _attend(self, plan: Plan, query: Tensor, slots: Tensor, out: Tensor) -> None:
        """Attend late tokens with page size 1."""
        assert plan.late is not None and plan.chosen is not None
        parts = (torch.split(part, _ROWS) for part in (plan.late.tokens, plan.chosen))
        for tokens, table in zip(*parts, strict=True):
            rows = self._inner.plan(_one_each(table), plan.call)
            out[tokens] = self._inner.forward(rows, query[tokens], slots)


def best(scores: Tensor, positions: Tensor, count: int) -> Tensor:
    """The `count` highest-scoring visible keys per token; ties go to the earlier key.

    Args:
        scores: float32 [S, L], by key position; overwritten.
        positions: int64 [S] token positions, at least `count`, less than L.

    Returns:
        int64 [S, count], ascending.
    """
    # A sequence with NaN scores selects the same number of keys, so the fault stays in its rows.
    scores.nan_to_num_(nan=torch.finfo(scores.dtype).min)
    hidden = torch.arange(scores.shape[1], device=scores.device) > positions[:, None]
    scores.masked_fill_(hidden, float("-inf"))
    least = scores.topk(count).values[:, -1:]
    above, equal = scores > least, scores == least
    room = count - above.sum(1, keepdim=True)
    above |= equal & (equal.cumsum(1) <= room)
    return above.nonzero()[:, 1].view(-1, count)


def _blocks(length: int) -> int:
    return -(-length // BLOCK)


def _early(batch: AttentionBatch, most: int) -> tuple[Tensor | None, AttentionBatch] | None:
    """Tokens before position `most`, and their rows."""
    counts, starts = (
        np.asarray(batch.query_lens, np.int64),
        np.asarray(batch.num_computed, np.int64),
    )
    early = np.minimum(counts, most - starts).clip(0)
    if (early == counts).all():
        return None, batch
    if not (rows := np.flatnonzero(early)).size:
        return None
    device, (_, position) = batch.slot_mapping.device, batch.flat()
    early, starts, tokens = early[rows], starts[rows], np.flatnonzero(position < most)
    return _tensor(tokens, device), replace(
        batch,
        query_start_loc=_tensor(np.concatenate(([0], np.cumsum(early))), device).int(),
        seq_lens=_tensor(starts + early, device).int(),
        block_table=batch.block_table.index_select(0, _tensor(rows, device)),
        query_lens=tuple(early.tolist()),
        num_computed=tuple(starts.tolist()),
        others=(),
    )


def _late(batch: AttentionBatch, most: int) -> Late | None:
    """The tokens from position `most` on."""
    row, position = batch.flat()
    tokens = np.flatnonzero(position >= most)
    if not tokens.size:
        return None
    tokens = tokens[np.argsort(position[tokens], kind="stable")]
    rows, inverse = np.unique(row[tokens], return_inverse=True)
    lengths, device = position[tokens] + 1, batch.slot_mapping.device
    size, at = batch.page_size, np.arange(_blocks(int(lengths[-1])) * BLOCK)
    page = _tensor((at // size).clip(max=batch.block_table.shape[1] - 1), device)
    table = batch.block_table.index_select(0, _tensor(rows, device)).long()
    return Late(
        tokens=_tensor(tokens, device),
        positions=_tensor(position[tokens], device),
        rows=_tensor(inverse, device),
        slots=table[:, page] * size + _tensor(at % size, device),
        lengths=tuple(lengths.tolist()),
    )


def _one_each(table: Tensor) -> AttentionBatch:
    """One row per token, over the KV at these slots, int32 [s, count]."""
    rows, count = table.shape
    return AttentionBatch(
        query_start_loc=torch.arange(rows + 1, dtype=torch.int32, device=table.device),
        seq_lens=torch.full((rows,), count, dtype=torch.int32, device=table.device),
        block_table=table,
        slot_mapping=table[:, -1].long(),  # Never written: the step's KV is already in place.
        query_lens=(1,) * rows,
        num_computed=(count - 1,) * rows,
        page_size=1,
    )


def _tensor(numbers: npt.NDArray[np.int64], device: torch.device) -> Tensor:
    return torch.from_numpy(numbers).to(device)
