"""Draws drafts for trees: beside each draft the tokens that are most probable after it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from baton_worker.engine.batch.draft_sampler import DraftSampler
from baton_worker.engine.batch.plan_columns import Column
from baton_worker.engine.batch.sampling_state import SamplingState
from baton_worker.engine.batch.sequence_states import SequenceStates
from baton_worker.sampling import Sampler
from baton_worker.speculative.proposer import NO_DRAFT, Tokens
from baton_worker.speculative.token_tree import Node, TokenTree


class TreeSampler(DraftSampler):
    """A proposer draws a chain as ever; `tree` is that chain with siblings."""

    def __init__(
        self,
        shape: TokenTree,
        sequences: SequenceStates,
        sampling: SamplingState,
        sampler: Sampler | None = None,
    ) -> None:
        super().__init__(sequences, sampling, sampler)
        self._shape, self._ranks = shape, shape.ranks
        self._candidates: dict[int, list[list[int]]] = {}
        """By slot and depth: tokens by rank; the first is the one that was drawn."""

    def begin(self, slots: Sequence[int]) -> None:
        """See `DraftSampler`."""
        super().begin(slots)
        self._candidates = {slot: [] for slot in slots}

    def sample(self, logits: Tensor, slots: Column) -> Tokens:
        """See `speculative.proposer.DraftSampler`."""
        depths = [len(self._candidates[slot]) for slot in slots.tolist()]
        ranks = [self._ranks[depth] if depth < len(self._ranks) else 1 for depth in depths]
        real = logits[:, : self._sampling.vocab_size]
        best = real.topk(min(max(ranks), real.shape[1])).indices.cpu().numpy()
        drawn = super().sample(logits, slots)
        rows = zip(slots.tolist(), drawn.tolist(), best.tolist(), ranks, strict=True)
        for slot, token, likely, count in rows:
            if token != NO_DRAFT:
                others = [other for other in likely if other != token]
                self._candidates[slot].append([token, *others[: count - 1]])
        return drawn

    def tree(self, slot: int, depth: int) -> tuple[Tokens, Column]:
        """The drafts of a slot down to a depth, without those that its grammar forbids or that end
        the sequence, and without what would follow them.

        Returns:
            int32 [n], in the order of the shape; int64 [n + 1], the parent of each in a row that
            begins with the token before all of them, whose own is -1.
        """
        paths: dict[Node, list[int]] = {(): []}
        numbers: dict[Node, int] = {(): 0}
        parents, tokens = [-1], list[int]()
        for node in self._shape.nodes:
            level = len(node) - 1
            offered = self._candidates[slot][level] if level < depth else []
            if node[:-1] not in paths or node[-1] >= len(offered):
                continue
            path = [*paths[node[:-1]], offered[node[-1]]]
            if self._sampling.draft(slot, np.array(path, np.int32)) == len(path):
                paths[node], numbers[node] = path, len(parents)
                parents.append(numbers[node[:-1]])
                tokens.append(path[-1])
        self._sampling.draft(slot, np.zeros(0, np.int32))
        return np.array(tokens, np.int32), np.array(parents, np.int64)
