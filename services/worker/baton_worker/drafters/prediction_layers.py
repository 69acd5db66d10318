"""Drafts of several layers of multi-token prediction (DeepSeek-V3, arXiv:2412.19437).

    layer 0    position i: hidden state of i, token i + 1    predicts token i + 2
    layer 1    position i: what layer 0 made of i, token i + 2    predicts token i + 3

So layer k is k positions behind the target. What it lacks it makes with drafts, and again when the
tokens there are confirmed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from baton_worker.drafters.draft_chain import draft_chain
from baton_worker.drafters.draft_head_weights import LayerHeadWeights
from baton_worker.drafters.layer_head import LayerHeadProposer
from baton_worker.speculative.proposer import (
    Column,
    DraftRequest,
    DraftSampler,
    Proposer,
    ProposerContext,
    TargetStep,
    Tokens,
)


def mtp_proposer(context: ProposerContext) -> Proposer:
    """The proposer of one prediction layer, or of several."""
    weights = context.target.drafter
    several = isinstance(weights, LayerHeadWeights) and weights.further
    return (PredictionLayersProposer if several else LayerHeadProposer)(context)


class _Run(NamedTuple):
    """Tokens of B rows that one layer runs."""

    slots: Column
    """int64 [B]"""
    starts: Column
    """int64 [B]: position of each row's first token in its sequence."""
    counts: Column
    """int64 [B], at least 1."""
    tokens: Column
    """int64 [T]: the tokens that are embedded, row after row."""
    positions: Column
    """int64 [T] or [axes, T], of the hidden states."""
    hidden: Tensor
    """[T, hidden]: what the layer reads."""


class PredictionLayersProposer(LayerHeadProposer):
    """Each layer makes one draft, the first layer the first one."""

    def __init__(self, context: ProposerContext) -> None:
        super().__init__(context)
        assert isinstance(context.target.drafter, LayerHeadWeights)
        self._layers = (self._head, *context.target.drafter.further)
        shape = len(self._layers), context.max_num_seqs
        self._confirmed: list[Tensor] = []
        """By layer [slots, hidden]: the stream of the last confirmed position that it has run."""
        self._has = np.zeros(shape, np.bool_)
        """Whether there is one."""

    def observe(self, step: TargetStep) -> None:
        """See `Proposer`."""
        self._step, slots = step, step.slots
        self._has[:, slots[self._lengths[slots] != step.starts + 1]] = False
        hidden = self._head.read(step.hidden)
        run = _Run(slots, step.starts, step.counts, step.next_tokens, step.positions, hidden)
        if not self._confirmed:
            empty = hidden.new_zeros(self._has.shape[1], self._head.settings.hidden)
            self._confirmed = [empty.clone() for _ in self._layers]
            axes = step.positions.shape[:-1]
            self._positions = np.zeros((*axes, self._has.shape[1]), np.int64)
        for layer in range(len(self._layers)):
            stream, before = self._run(layer, run), run
            if layer + 1 < len(self._layers):
                run = self._behind(layer, run, stream)
            last = self._there(np.cumsum(before.counts) - 1)
            self._confirmed[layer].index_copy_(
                0, self._there(before.slots), stream.index_select(0, last)
            )
            self._has[layer, before.slots] = True
            if not len(run.slots):
                break
        self._positions[..., slots] = step.positions[..., step.last]
        self._lengths[slots] = step.lengths

    def propose(self, requests: Sequence[DraftRequest], sampler: DraftSampler) -> list[Tokens]:
        """See `Proposer`."""
        current = [r for r in requests if self._lengths[r.slot] == len(r.tokens)]
        if not current:
            return [np.zeros(0, np.int32)] * len(requests)
        slots = np.array([request.slot for request in current], np.int64)
        streams = list(torch.split(self._confirmed[0].index_select(0, self._there(slots)), 1))
        """By row [n, hidden]: what the layer of the draft before made of the last n positions."""
        drafts: list[list[int]] = [[] for _ in current]

        def logits(depth: int, rows: Column, newest: Tokens) -> Tensor:
            if depth:
                for row, token in zip(rows.tolist(), newest.tolist(), strict=True):
                    drafts[row].append(token)
                run = self._drafted(depth, slots, rows, streams, drafts)
                made = torch.split(self._run(depth, run), run.counts.tolist())
                for row, stream in zip(rows.tolist(), made, strict=True):
                    streams[row] = stream
            if self._adapters is not None:
                # Those of the target's head: a draft is made without.
                self._adapters.write(np.full(len(rows), -1))
            last = torch.stack([streams[row][-1] for row in rows.tolist()])
            return self._layers[depth].logits(last)

        results = draft_chain(current, sampler, len(self._layers), logits, self.costs)
        made = dict(zip(slots.tolist(), results, strict=True))
        return [made.get(request.slot, np.zeros(0, np.int32)) for request in requests]

    def _run(self, layer: int, run: _Run) -> Tensor:
        """The stream [T, hidden] of a layer."""
        assert self._step is not None
        batch = self._batch(self._step, run.slots, run.starts, run.counts)
        tokens, positions = self._there(run.tokens), self._there(run.positions)
        head = self._layers[layer]
        stream: Tensor = head(tokens, positions, run.hidden, batch, self._step.cache)
        return stream

    def _behind(self, layer: int, run: _Run, stream: Tensor) -> _Run:
        """The inputs of the next layer for the same tokens: each one position earlier, from the
        stored stream of the position before the row, if there is one."""
        ends = np.cumsum(run.counts)
        first, front = ends - run.counts, self._has[layer, run.slots]
        columns = zip(range(len(ends)), first.tolist(), ends.tolist(), front.tolist(), strict=True)
        states, tokens = list[int](), list[int]()
        for row, begin, end, known in columns:
            states += [*([len(stream) + row] if known else []), *range(begin, end - 1)]
            tokens += range(begin if known else begin + 1, end)
        confirmed = self._confirmed[layer].index_select(0, self._there(run.slots))
        index = np.array(states, np.int64)
        source = torch.cat((stream, confirmed)).index_select(0, self._there(index))
        positions = np.concatenate((run.positions, run.positions[..., first] - 1), -1)
        counts = run.counts - ~front
        some = counts > 0
        return _Run(
            run.slots[some],
            (run.starts - front)[some],
            counts[some],
            run.tokens[np.array(tokens, np.int64)],
            positions[..., index],
            self._layers[layer].carried(source),
        )

    def _drafted(
        self,
        layer: int,
        slots: Column,
        rows: Column,
        streams: list[Tensor],
        drafts: list[list[int]],
    ) -> _Run:
        """The inputs of a layer for the draft of its number: the positions that it lacks."""
        before, hidden = layer - 1, list[Tensor]()
        for row in rows.tolist():
            slot = int(slots[row])
            if before and self._has[before, slot]:
                hidden.append(self._confirmed[before][slot : slot + 1])
            hidden.append(streams[row])
        front = self._has[before, slots[rows]] if before else np.zeros(len(rows), np.bool_)
        counts = np.array([len(streams[row]) for row in rows.tolist()]) + front
        pairs = list(zip(rows.tolist(), counts.tolist(), strict=True))
        tokens = [token for row, count in pairs for token in drafts[row][-count:]]
        ends = self._positions[..., slots[rows]]
        positions = [
            ends[..., number : number + 1] + np.arange(1 - count, 1)
            for number, (_, count) in enumerate(pairs)
        ]
        return _Run(
            slots[rows],
            self._lengths[slots[rows]] - 1 - counts,
            counts,
            np.array(tokens, np.int64),
            np.concatenate(positions, -1),
            self._layers[before].carried(torch.cat(hidden)),
        )
