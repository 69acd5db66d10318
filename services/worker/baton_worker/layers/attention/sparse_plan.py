"""Attention to the keys that an index has chosen (DeepSeek-V3.2, arXiv:2512.02556).

A token that sees at most `most_keys` keys attends to all of them, in the row that it came in. A
later token is a row of its own, in whose block table each key that was chosen for it is a page of
one token: so no latent is copied, and it costs `most_keys` latents, however long the text is.

    position       0 .. most_keys - 1       most_keys, ...
    rows           as in the step           one per token
    block table    pages                    slots of the chosen keys, the earliest first

What a token does follows from its position alone, and the index scores it by itself: so neither
where a text is cut nor what else is in the batch changes a bit.
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
"""Keys that are scored together."""
_ROWS = 64
"""Tokens that are attended together: a backend that copies keys has memory for no more."""


@dataclass(frozen=True, slots=True)
class Late:
    """Tokens that see more keys than they may attend to: S of them, of R rows, by position."""

    tokens: Tensor
    """int64 [S], on the flat token axis."""
    positions: Tensor
    """int64 [S]"""
    rows: Tensor
    """int64 [S], of `slots`."""
    slots: Tensor
    """int64 [R, a multiple of `BLOCK`]: where the keys of a row are, by position; beyond the last
    one, anywhere."""
    lengths: tuple[int, ...]
    """Keys that each of them sees, ascending."""

    def parts(self, most: int) -> Iterator[tuple[slice, int]]:
        """Some of the tokens at a time, and the blocks of keys that the last of them sees: together
        `most` blocks, or one token."""
        first = 0
        while first < len(self.lengths):
            count = max(1, most // _blocks(self.lengths[first]))
            end = min(first + count, len(self.lengths))
            yield slice(first, end), _blocks(self.lengths[end - 1])
            first = end


@dataclass(frozen=True, slots=True)
class Plan:
    """One step."""

    call: AttentionSpec
    early: tuple[Tensor | None, Any] | None
    """The tokens that attend to all they see, None for all of the step, and the plan of the backend
    that attends; None where there are none."""
    late: Late | None
    chosen: Tensor | None = None
    """int32 [S, most_keys]: slots that each late token attends to, the earliest first."""


class Chosen:
    """A backend over chosen keys, on top of one over pages."""

    def __init__(self, inner: Backend) -> None:
        self._inner, self.layouts = inner, inner.layouts
        self.capture_blocker: str | None = "the host waits for the keys that an index chooses"

    def refuses(self, call: AttentionSpec) -> str | None:
        """What the backend below refuses."""
        return self._inner.refuses(call)

    def plan(self, batch: AttentionBatch, call: AttentionSpec) -> Plan:
        """Part the tokens by position."""
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
        """See `Backend.forward`; late tokens have been `chosen` for."""
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
        """Late tokens, over pages of one token each."""
        assert plan.late is not None and plan.chosen is not None
        parts = (torch.split(part, _ROWS) for part in (plan.late.tokens, plan.chosen))
        for tokens, table in zip(*parts, strict=True):
            rows = self._inner.plan(_one_each(table), plan.call)
            out[tokens] = self._inner.forward(rows, query[tokens], slots)


def best(scores: Tensor, positions: Tensor, count: int) -> Tensor:
    """The `count` keys of the highest scores that each token sees; of equal ones the earlier.

    Args:
        scores: float32 [S, L], by the position of the key; overwritten.
        positions: int64 [S] of the tokens, at least `count`, less than L.

    Returns:
        int64 [S, count], ascending.
    """
    # A broken sequence chooses as many keys as any other: its fault stays its own.
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
    """The tokens before position `most`, and their rows."""
    counts, starts = (
        np.asarray(batch.query_lens, np.int64),
        np.asarray(batch.num_computed, np.int64),
    )
    few = np.minimum(counts, most - starts).clip(0)
    if (few == counts).all():
        return None, batch
    if not (rows := np.flatnonzero(few)).size:
        return None
    device, (_, position) = batch.slot_mapping.device, batch.flat()
    few, starts, tokens = few[rows], starts[rows], np.flatnonzero(position < most)
    return _tensor(tokens, device), replace(
        batch,
        query_start_loc=_tensor(np.concatenate(([0], np.cumsum(few))), device).int(),
        seq_lens=_tensor(starts + few, device).int(),
        block_table=batch.block_table.index_select(0, _tensor(rows, device)),
        query_lens=tuple(few.tolist()),
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
    """Rows of one new token that sees the keys at these slots, int32 [s, count]."""
    rows, count = table.shape
    return AttentionBatch(
        query_start_loc=torch.arange(rows + 1, dtype=torch.int32, device=table.device),
        seq_lens=torch.full((rows,), count, dtype=torch.int32, device=table.device),
        block_table=table,
        slot_mapping=table[:, -1].long(),  # Nobody writes there: the step's own keys are in place.
        query_lens=(1,) * rows,
        num_computed=(count - 1,) * rows,
        page_size=1,
    )


def _tensor(numbers: npt.NDArray[np.int64], device: torch.device) -> Tensor:
    return torch.from_numpy(numbers).to(device)
