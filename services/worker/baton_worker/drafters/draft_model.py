"""A whole model as a proposer (Leviathan, Kalman, Matias 2023, arXiv:2211.17192)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from baton.logs import logger
from baton_worker.drafters.draft_costs import catch_up_tokens, measure_chunks, measure_rows
from baton_worker.drafters.draft_forward import DraftForward
from baton_worker.drafters.draft_model_weights import DraftModelWeights
from baton_worker.platform.cpu_threads import with_threads
from baton_worker.speculative.proposer import (
    NO_DRAFT,
    Column,
    DraftRequest,
    DraftSampler,
    Proposer,
    ProposerContext,
    Tokens,
)

_USUAL = 2
"""Tokens of a log without KV after a step: one, or two if all of its drafts were accepted."""

log = logger(__name__)


class _Chunk(NamedTuple):
    """The tokens that a row runs first."""

    row: int
    """Index of its request."""
    tokens: Tokens
    ready: bool
    """Whether this is all that its log has without KV."""


class DraftModelProposer(Proposer):
    """See `Proposer`. The rows of a step draft side by side, pass after pass:

        first     what each log has without KV: one or two tokens, or a chunk of a prompt
        further   the draft before, for each row that may have one more

    A row that has not caught up, because it has entered or has come from another worker, has no
    drafts in this step, and the others do not wait for it.
    """

    def __init__(self, context: ProposerContext) -> None:
        weights = context.target.drafter
        assert isinstance(weights, DraftModelWeights)
        self._run, self._longest = DraftForward(weights, context), weights.loaded.max_length
        self._kv = self._run.kv
        self._broken = set[int]()
        """Slots whose hidden states were not finite."""
        threads, slots = context.build.threads, context.max_num_seqs
        self.costs = costs = with_threads(threads, partial(measure_rows, self._run, slots))
        self._step_costs = costs
        chunks = with_threads(threads, partial(measure_chunks, self._run))
        self._chunk = catch_up_tokens(chunks, context.config.num_speculative_tokens)
        log.info("drafting takes, by rows: %s; %d tokens a step catch up", costs, self._chunk)

    def propose(self, requests: Sequence[DraftRequest], sampler: DraftSampler) -> list[Tokens]:
        """See `Proposer`."""
        slots = np.array([request.slot for request in requests])
        lengths = np.array([len(request.tokens) for request in requests])
        # The last draft of a row is not run.
        room = self._longest + 1 - lengths
        most = np.minimum(room, np.array([request.most for request in requests]))
        drafts = np.full((len(requests), max(1, int(most.max()))), NO_DRAFT, np.int32)
        rows = self._first(requests, np.flatnonzero(most > 0), sampler, drafts)
        for depth in range(1, drafts.shape[1]):
            rows = rows[(drafts[rows, depth - 1] != NO_DRAFT) & (most[rows] > depth)]
            rows = rows[self._reserved(slots[rows])]
            if not len(rows):
                break
            self._further(slots[rows], depth, rows, sampler, drafts)
        return [row[: int((row != NO_DRAFT).sum())] for row in drafts]

    def release(self, slot: int) -> None:
        """See `Proposer`."""
        self._kv.release(slot, broken=slot in self._broken)
        self._broken.discard(slot)

    def _first(
        self,
        requests: Sequence[DraftRequest],
        rows: Column,
        sampler: DraftSampler,
        drafts: Tokens,
    ) -> Column:
        """The first pass. Returns the rows that have caught up: int64."""
        chunks = self._chunks(requests, rows)
        if not chunks:
            return rows[:0]
        slots = np.array([requests[chunk.row].slot for chunk in chunks])
        counts = np.array([len(chunk.tokens) for chunk in chunks])
        tokens = np.concatenate([chunk.tokens for chunk in chunks]).astype(np.int64)
        hidden = self._run(slots, counts, tokens)
        ready = np.array([chunk.ready for chunk in chunks])
        caught_up: Column = np.array([chunk.row for chunk in chunks])[ready]
        if len(caught_up):
            last = (np.cumsum(counts) - 1)[ready]
            drafts[caught_up, 0] = self._draw(hidden, last, slots[ready], sampler)
        return caught_up

    def _further(
        self, slots: Column, depth: int, rows: Column, sampler: DraftSampler, drafts: Tokens
    ) -> None:
        begin = time.perf_counter()
        hidden = self._run(slots, np.ones_like(slots), drafts[rows, depth - 1].astype(np.int64))
        drafts[rows, depth] = self._draw(hidden, None, slots, sampler)
        self._step_costs.observe(len(rows), time.perf_counter() - begin)

    def _chunks(self, requests: Sequence[DraftRequest], rows: Column) -> list[_Chunk]:
        """What runs first: of the rows that have to catch up those with least to do, in as many
        tokens as a step may spend; none that would take more steps than it has tokens to come."""
        chunks, budget = list[_Chunk](), self._chunk
        going = [row for row in rows.tolist() if requests[row].slot not in self._broken]
        for missing, row in sorted((self._kv.follow(requests[row]), row) for row in going):
            slot, tokens = requests[row].slot, requests[row].tokens
            if missing > max(_USUAL, self._chunk * requests[row].remaining):
                continue
            count = missing if missing <= _USUAL else min(missing, budget)
            start = int(self._kv.computed[slot])
            if count and self._kv.reserve(slot, start + count):
                chunks.append(_Chunk(row, tokens[start : start + count], count == missing))
                budget -= count if missing > _USUAL else 0
        return chunks

    def _reserved(self, slots: Column) -> npt.NDArray[np.bool_]:
        """Whether each slot has a page for one more token."""
        ends = (self._kv.computed[slots] + 1).tolist()
        pairs = zip(slots.tolist(), ends, strict=True)
        return np.array([self._kv.reserve(slot, end) for slot, end in pairs], np.bool_)

    def _draw(
        self, hidden: Tensor, indices: Column | None, slots: Column, sampler: DraftSampler
    ) -> Tokens:
        """Drafts behind hidden states [T, hidden], or behind those at `indices` [R]: int32 [R]."""
        tokens = sampler.sample(self._run.logits(hidden, indices), slots)
        for row in np.flatnonzero(tokens == NO_DRAFT).tolist():
            if not hidden[row if indices is None else int(indices[row])].isfinite().all():
                self._broken.add(int(slots[row]))
        return tokens
