"""Drafts of a head with layers of its own, whose KV is in the pages of the target."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from baton_worker.attention import AttentionBatch
from baton_worker.attention.buffers import Buffers
from baton_worker.drafters.draft_chain import draft_chain
from baton_worker.drafters.draft_costs import PassCosts
from baton_worker.drafters.draft_head_weights import LayerHeadWeights
from baton_worker.drafters.waiting_states import WaitingStates
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


class LayerHeadProposer(Proposer):
    """Runs the head over every confirmed token: at once, but for a row's single tokens, which wait
    until its page is full or drafts are wanted. So the head's KV in a full page is complete: pages
    that are shared, swapped or sent to another worker have it too. The KV of drafts stands behind
    it, and the next confirmed tokens overwrite it.

    At the last token before what the prefix cache had, the head's KV belongs to the token that
    followed there in the sequence that filled the page.
    """

    def __init__(self, context: ProposerContext) -> None:
        assert isinstance(context.target.drafter, LayerHeadWeights)
        self._head, self._device = context.target.drafter.head, context.build.device
        self._buffers, self._adapters = Buffers(self._device), context.build.adapters
        self.costs = PassCosts()
        self._waiting = WaitingStates()
        slots = context.max_num_seqs
        self._lengths = np.zeros(slots, np.int64)
        """By slot: tokens of its sequence when its stream was kept; 0: there is none."""
        self._positions: Column = np.zeros((1, slots), np.int64)
        """[axes, slots]: position of that stream."""
        self._streams: Tensor | None = None
        """[slots, hidden]"""
        self._step: TargetStep | None = None
        """The last one; its tables and cache are those of every step."""

    def observe(self, step: TargetStep) -> None:
        """See `Proposer`."""
        self._step = step
        self._waiting.add(step)
        is_full = (step.starts + step.counts) % step.tables.page_size == 0
        self._catch_up(step.slots[is_full | (step.counts > 1)].tolist())

    def _catch_up(self, slots: list[int]) -> None:
        """Run the head over all tokens of these slots that wait."""
        if slots and self._step is not None:
            self._run_over(self._waiting.take(slots, self._step.tables, self._step.cache))

    def _run_over(self, step: TargetStep) -> None:
        """Run the head over all tokens of a step, whose tables and cache are the head's."""
        self._step, head = step, self._head
        batch = self._batch(step, step.slots, step.starts, step.counts)
        tokens, positions = map(self._there, (step.next_tokens, step.positions))
        stream = head(tokens, positions, head.read(step.hidden), batch, step.cache)
        last = stream.index_select(0, self._there(step.last))
        if self._streams is None:
            self._streams = last.new_zeros(len(self._lengths), last.shape[1])
            self._positions = np.zeros((*step.positions.shape[:-1], len(self._lengths)), np.int64)
        self._streams.index_copy_(0, self._there(step.slots), last)
        self._positions[..., step.slots] = step.positions[..., step.last]
        self._lengths[step.slots] = step.lengths

    def propose(self, requests: Sequence[DraftRequest], sampler: DraftSampler) -> list[Tokens]:
        """See `Proposer`."""
        waiting = set(self._waiting.slots)
        self._catch_up([request.slot for request in requests if request.slot in waiting])
        current = [r for r in requests if self._lengths[r.slot] == len(r.tokens)]
        if not current or self._streams is None:
            return [_NOTHING] * len(requests)
        slots = np.array([request.slot for request in current], np.int64)
        streams = self._streams.index_select(0, self._there(slots))

        def logits(depth: int, rows: Column, newest: Tokens) -> Tensor:
            if depth:
                stream = streams.index_select(0, self._there(rows))
                streams[self._there(rows)] = self._next(depth, slots[rows], newest, stream)
            if self._adapters is not None:
                # Those of the target's head: a draft is made without.
                self._adapters.write(np.full(len(rows), -1))
            return self._head.logits(streams.index_select(0, self._there(rows)))

        most = max(request.most for request in current)
        drafts = draft_chain(current, sampler, most, logits, self.costs)
        by_slot = dict(zip(slots.tolist(), drafts, strict=True))
        return [by_slot.get(request.slot, _NOTHING) for request in requests]

    def release(self, slot: int) -> None:
        """See `Proposer`."""
        self._lengths[slot] = 0
        self._waiting.drop(slot)

    def _next(self, depth: int, slots: Column, drafts: Tokens, stream: Tensor) -> Tensor:
        """The streams behind draft number `depth` of each slot."""
        assert self._step is not None
        starts = self._lengths[slots] - 2 + depth
        batch = self._batch(self._step, slots, starts, np.ones_like(slots))
        tokens = self._there(drafts.astype(np.int64))
        positions = self._there(self._positions[..., slots] + depth)
        hidden = self._head.carried(stream)
        output: Tensor = self._head(tokens, positions, hidden, batch, self._step.cache)
        return output

    def _batch(
        self, step: TargetStep, slots: Column, starts: Column, counts: Column
    ) -> AttentionBatch:
        tables = step.tables
        return AttentionBatch.build_all(
            *(counts, starts, tables.tables, tables.page_size, self._device),
            slots=slots,
            buffers=self._buffers,
        )

    def _there(self, column: Column) -> Tensor:
        return torch.from_numpy(column).to(self._device)
