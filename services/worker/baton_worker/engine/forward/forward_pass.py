"""Contract of a model for the runner: inputs to hidden states, and hidden states to logits."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from baton_worker.engine.batch.plan_columns import Column
from baton_worker.engine.batch.step_inputs import StepInputs


class ForwardPass(Protocol):
    """A model and its state between steps."""

    def __call__(self, inputs: StepInputs) -> Tensor:
        """Run one step of at least one row.

        Returns:
            Hidden states [T, hidden], or [B, width] of a model that pools by itself.

        Raises:
            PlanError: a model of this kind cannot run such a step.
        """

    def logits(self, hidden: Tensor, indices: Column | None = None) -> Tensor:
        """Logits of hidden states [T, hidden], or of those at `indices` [L]: float32 [L, vocab].

        Raises:
            PlanError: the model has no logits.
        """
