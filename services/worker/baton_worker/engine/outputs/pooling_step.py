"""Pooling of one step: vectors of the texts that are complete."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from baton.protocol import Plan
from baton.protocol.token_columns import unpack
from baton_worker.engine.batch.plan_columns import PlanError
from baton_worker.engine.batch.step_inputs import StepInputs
from baton_worker.engine.batch.step_outputs import StepOutputs
from baton_worker.pooling.accumulate import PoolingAccumulator
from baton_worker.pooling.pooler import Pooler

Vector = npt.NDArray[np.float32]
"""Of one text: [K * width]."""


class PoolingStep:
    """Collects hidden states chunk by chunk and passes complete texts to the pooler, if any."""

    def __init__(self, pooler: Pooler | None) -> None:
        self._pooler = pooler
        self._gathering = None if pooler is None else PoolingAccumulator(pooler.recipe)

    def enter(self, plan: Plan) -> None:
        """Enter and release sequences.

        Raises:
            PlanError: a sequence is to be pooled, but the worker has no pooler.
        """
        if self._gathering is None:
            poolings = [new.pooling for new in plan.new_sequences if new.pooling is not None]
            if not all(pooling.aligned_from for pooling in poolings):
                raise PlanError("A plan wants a vector of a model that makes text only.")
            return
        self._gathering.begin(unpack(plan.release, "I"))
        self._gathering.begin(new.slot for new in plan.new_sequences)

    def step(self, inputs: StepInputs, hidden: torch.Tensor, outputs: StepOutputs) -> None:
        """Pool the texts whose last token has run; fail those that are not finite. Hidden is
        [T, hidden], or one row per text of a model that does its own pooling."""
        if self._pooler is None or not inputs.pooling:
            return
        vectors = self._vectors(inputs, self._complete(inputs, hidden, outputs))
        outputs.vectors = {s: v for s, v in vectors.items() if np.isfinite(v).all()}
        outputs.break_down(np.array([s for s in vectors if s not in outputs.vectors]), "vectors")

    def _complete(
        self, inputs: StepInputs, hidden: torch.Tensor, outputs: StepOutputs
    ) -> dict[int, torch.Tensor]:
        """Hidden states of each completed text, by slot."""
        assert self._pooler is not None and self._gathering is not None
        complete: dict[int, torch.Tensor] = {}
        rows, lengths = inputs.rows, inputs.rows.counts.tolist()
        chunks = torch.split(hidden, 1 if len(hidden) == len(rows) else lengths)
        texts = torch.split(torch.from_numpy(inputs.tokens).to(hidden.device), lengths)
        for row, slot in enumerate(rows.slots.tolist()):
            if slot not in inputs.pooling or slot in outputs.failed:
                continue
            start, tokens = int(rows.starts[row]), texts[row]
            # Step tags are searched in texts that run whole: their only chunk starts at 0.
            skipped = self._pooler.recipe.skipped(tokens.tolist()) if not start else 0
            self._gathering.add(slot, chunks[row][skipped:], tokens[skipped:])
            if (end := start + len(tokens)) == inputs.lengths[row]:
                complete[slot] = self._gathering.finish(slot, end - skipped)
        return complete

    def _vectors(self, inputs: StepInputs, complete: dict[int, torch.Tensor]) -> dict[int, Vector]:
        """Vectors by slot."""
        assert self._pooler is not None
        if not complete:
            return {}
        vectors = self._pooler(list(complete.values()), [inputs.pooling[s] for s in complete])
        return {s: v.flatten().cpu().numpy() for s, v in zip(complete, vectors, strict=True)}
