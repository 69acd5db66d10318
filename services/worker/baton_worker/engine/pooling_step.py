"""The vectors of one step: which texts have run to their end, and what they come to."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from baton.protocol import Plan
from baton.protocol.token_columns import unpack
from baton_worker.engine.input_batch import BatchRows, InputBatch, PlanError
from baton_worker.pooling.accumulate import PoolingAccumulator
from baton_worker.pooling.pooler import Pooler

Vector = npt.NDArray[np.float32]
"""Of one text: [K * width]."""


class PoolingStep:
    """Gathers states chunk by chunk and hands complete texts to the pooler, if there is one."""

    def __init__(self, pooler: Pooler | None) -> None:
        self._pooler = pooler
        self._gathering = None if pooler is None else PoolingAccumulator(pooler.recipe)

    def enter(self, plan: Plan) -> None:
        """Sequences enter and leave.

        Raises:
            PlanError: one of them wants a vector, and this worker makes none.
        """
        if self._gathering is None:
            if any(new.pooling is not None for new in plan.new_sequences):
                raise PlanError("A plan wants a vector of a model that makes text only.")
            return
        self._gathering.begin(unpack(plan.release, "I"))
        self._gathering.begin(new.slot for new in plan.new_sequences)

    def step(self, batch: InputBatch, rows: BatchRows, hidden: torch.Tensor) -> dict[int, Vector]:
        """Slot to the numbers of each text that has come to its end; hidden is [T, hidden], or one
        row per text of a model that does its own pooling."""
        assert self._pooler is not None and self._gathering is not None
        complete: dict[int, torch.Tensor] = {}
        each = len(hidden) == len(rows)
        chunks = torch.split(hidden, 1 if each else rows.counts.tolist())
        for row, slot in enumerate(rows.slots.tolist()):
            if slot not in batch.pooling or batch.done[slot]:
                continue
            start, end = int(rows.starts[row]), int(rows.starts[row] + rows.counts[row])
            tokens = torch.from_numpy(batch.tokens[slot, start:end]).to(hidden.device)
            # A mark is looked for in texts that are run whole: their only chunk begins at 0.
            skipped = self._pooler.recipe.skipped(tokens.tolist()) if not start else 0
            self._gathering.add(slot, chunks[row][skipped:], tokens[skipped:])
            if end == batch.lengths[slot]:
                complete[slot] = self._gathering.finish(slot, end - skipped)
        if not complete:
            return {}
        wanted = [batch.pooling[slot] for slot in complete]
        vectors = self._pooler(list(complete.values()), wanted)
        return {s: v.flatten().cpu().numpy() for s, v in zip(complete, vectors, strict=True)}
