"""A step of a plan from its first launch to its result."""

from __future__ import annotations

from dataclasses import dataclass

from baton.protocol import Plan, Result
from baton_worker.engine.batch.step_inputs import StepInputs
from baton_worker.engine.batch.step_outputs import Committed, StepOutputs


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """Step `turn` of a plan."""

    plan: Plan
    turn: int
    inputs: StepInputs
    outputs: StepOutputs
    begin: float
    gap: float
    """Seconds that no step ran before it."""

    def result(self, committed: Committed, begin: float, end: float) -> Result:
        """Its result; it ran from `begin` to `end`."""
        gap = self.gap if len(self.inputs) else 0.0
        return self.outputs.result(self.plan, self.turn, committed, end - begin, gap)
