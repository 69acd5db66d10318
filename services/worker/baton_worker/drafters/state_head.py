"""Drafts of a head that reads one hidden state of a sequence: Medusa, the MLP speculator."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from baton_worker.drafters.draft_chain import draft_chain
from baton_worker.drafters.draft_costs import PassCosts
from baton_worker.drafters.draft_head_weights import StateHeadWeights
from baton_worker.speculative.proposer import (
    Column,
    DraftRequest,
    DraftSampler,
    Proposer,
    ProposerContext,
    TargetStep,
    Tokens,
)

_NOTHING: Tokens = np.zeros(0, np.int32)


class _Carried:
    """The states of rows between two drafts; rows drop out on the way.

    Args:
        state: [R, any], of all rows.
    """

    def __init__(self, state: Tensor) -> None:
        self.state = state
        self._rows = torch.arange(len(state), device=state.device)

    def take(self, rows: Tensor) -> Tensor:
        """The states of some of the rows that are left, int64 [any] as they were numbered."""
        index = torch.searchsorted(self._rows, rows)
        self._rows = rows
        return self.state.index_select(0, index)


class StateHeadProposer(Proposer):
    """Keeps the target's last hidden state of each sequence. A sequence that was computed elsewhere
    is drafted for once a step of it has run here."""

    def __init__(self, context: ProposerContext) -> None:
        assert isinstance(context.target.drafter, StateHeadWeights)
        self._head, self._device = context.target.drafter.head, context.build.device
        self.costs = PassCosts()
        self._lengths = np.zeros(context.max_num_seqs, np.int64)
        """By slot: tokens of its sequence when its state was kept; 0: there is none."""
        self._states: Tensor | None = None
        """[slots, hidden]"""

    def observe(self, step: TargetStep) -> None:
        """See `Proposer`."""
        last = step.hidden.index_select(0, self._there(step.last))
        if self._states is None:
            self._states = last.new_zeros(len(self._lengths), last.shape[1])
        self._states.index_copy_(0, self._there(step.slots), last)
        self._lengths[step.slots] = step.lengths

    def propose(self, requests: Sequence[DraftRequest], sampler: DraftSampler) -> list[Tokens]:
        """See `Proposer`."""
        current = [r for r in requests if self._lengths[r.slot] == len(r.tokens)]
        if not current or self._states is None:
            return [_NOTHING] * len(requests)
        slots = np.array([request.slot for request in current], np.int64)
        states = self._states.index_select(0, self._there(slots))
        drafts = draft_chain(
            current,
            sampler,
            self._head.num_drafts,
            partial(self._logits, _Carried(states)),
            self.costs,
        )
        by_slot = dict(zip(slots.tolist(), drafts, strict=True))
        return [by_slot.get(request.slot, _NOTHING) for request in requests]

    def _logits(self, carried: _Carried, depth: int, rows: Column, newest: Tokens) -> Tensor:
        """See `draft_chain`."""
        state = carried.take(self._there(rows))
        tokens = self._there(newest.astype(np.int64))
        logits: Tensor
        logits, carried.state = self._head(state, tokens, depth)
        return logits

    def release(self, slot: int) -> None:
        """See `Proposer`."""
        self._lengths[slot] = 0

    def _there(self, column: Column) -> Tensor:
        return torch.from_numpy(column).to(self._device)
