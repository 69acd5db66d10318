"""An EAGLE-3 head as a model of its own: apart from the target's step and pages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from baton_worker.drafters.block_tables import BlockTables
from baton_worker.drafters.draft_head_weights import LayerHeadWeights
from baton_worker.drafters.layer_head import LayerHeadProposer
from baton_worker.kv_cache import KVCache
from baton_worker.speculative.proposer import (
    DraftRequest,
    DraftSampler,
    ProposerContext,
    TargetStep,
    Tokens,
)

_MOST_WAITING = 2048
"""Tokens whose hidden states are kept until the head runs; with more of them it runs at once."""


class TwoModelProposer(LayerHeadProposer):
    """Keeps what the target's steps show, and runs the head when drafts are wanted, over pages of
    its own: the target's pages have no layers of the head, so they are handed over between workers
    with and without one.

    A sequence begins for the head at the first token whose hidden state it sees. What the prefix
    cache or another worker had is before that, and drafts are made without it.
    """

    def __init__(self, context: ProposerContext) -> None:
        super().__init__(context)
        assert isinstance(context.target.drafter, LayerHeadWeights)
        decoder, build = context.target.drafter.head.settings.decoder, context.build
        sizes = context.num_pages, context.page_size
        self._cache = KVCache(
            decoder,
            *sizes,
            dtype=self._head.dtype,
            device=build.device,
            codes=build.codes,
            layout=build.layout,
        )
        self._pages = BlockTables(self._cache, context.max_num_seqs, context.max_model_len)
        self._begins = np.zeros(context.max_num_seqs, np.int64)
        """By slot: position of the first token that the head has seen."""
        self._num_tokens = np.zeros(context.max_num_seqs, np.int64)
        """By slot: tokens from there on, those that wait included."""

    def observe(self, step: TargetStep) -> None:
        """See `Proposer`."""
        rows = zip(step.slots.tolist(), step.starts.tolist(), step.counts.tolist(), strict=True)
        for slot, start, count in rows:
            if self._begins[slot] + self._num_tokens[slot] != start or not self._num_tokens[slot]:
                self.release(slot)
                self._begins[slot] = start
            self._num_tokens[slot] += count
        self._waiting.add(step)
        if len(self._waiting) > _MOST_WAITING:
            self._catch_up(self._waiting.slots)

    def propose(self, requests: Sequence[DraftRequest], sampler: DraftSampler) -> list[Tokens]:
        """See `Proposer`."""
        waiting = set(self._waiting.slots)
        self._catch_up([request.slot for request in requests if request.slot in waiting])
        rows = [
            request._replace(tokens=request.tokens[int(self._begins[request.slot]) :])
            for request in requests
            if self._reserve(request.slot, int(self._num_tokens[request.slot]) + request.most)
        ]
        by_slot = dict(zip((r.slot for r in rows), super().propose(rows, sampler), strict=True))
        return [by_slot.get(request.slot, np.zeros(0, np.int32)) for request in requests]

    def release(self, slot: int) -> None:
        """See `Proposer`."""
        super().release(slot)
        self._pages.release(slot)
        self._num_tokens[slot] = 0

    def _reserve(self, slot: int, length: int) -> bool:
        """Pages for so many tokens of a slot, if it has any and there are enough."""
        return bool(self._num_tokens[slot]) and self._pages.reserve(slot, length)

    def _catch_up(self, slots: list[int]) -> None:
        """Run the head over all tokens of these slots that wait. A slot without pages for them
        starts anew with its next token."""
        for slot in [s for s in slots if not self._reserve(s, int(self._num_tokens[s]))]:
            slots.remove(slot)
            self.release(slot)
        if not slots:
            return
        step = self._waiting.take(slots, self._pages, self._cache)
        # Over pages of its own a sequence begins with the first token that the head has seen.
        self._run_over(step._replace(starts=step.starts - self._begins[step.slots]))
