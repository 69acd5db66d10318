"""Queue of received plans, step by step.

    plan 7: steps 7 8 9 10     plan 11: step 11
                    ^ the next one to begin

A plan of several steps can be truncated while it runs: it then ends after the next of its steps
that starts, and the next result reports that. Its later steps are dropped; the scheduler's next
plan starts right after it.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import msgspec

from baton.protocol import Plan, Result


class PlanStep(NamedTuple):
    """Step `turn` of a plan, counted from 0."""

    plan: Plan
    turn: int


class PlanQueue:
    """FIFO of plans, consumed by steps."""

    def __init__(self) -> None:
        self._plans: deque[Plan] = deque()
        self._turn = 0
        self._truncated_at = 0
        self.ended = 0
        """Plans that are over since the start."""

    def __len__(self) -> int:
        return len(self._plans)

    def add(self, plan: Plan) -> None:
        """Append a plan."""
        self._plans.append(plan)

    def clear(self) -> None:
        """Drop all plans."""
        self.ended += len(self._plans)
        self._plans.clear()
        self._turn = self._truncated_at = 0

    def truncate(self, step: int) -> None:
        """Truncate the plan that starts at `step` after its next step. No effect if it is not
        queued or would end by then anyway."""
        for number, plan in enumerate(self._plans):
            turns = 1 + (self._turn if number == 0 else 0)
            if plan.step == step and turns < plan.num_steps:
                self._plans[number] = msgspec.structs.replace(plan, num_steps=turns)
                self._truncated_at = step + turns - 1

    @property
    def first(self) -> PlanStep:
        """The step to run now; there must be one."""
        return PlanStep(self._plans[0], self._turn)

    def advance(self) -> None:
        """Move on to the next step."""
        self._turn += 1
        if self._turn >= self._plans[0].num_steps:
            self._plans.popleft()
            self._turn = 0
            self.ended += 1

    def with_truncation(self, result: Result) -> Result:
        """The result to send, with the end of a plan that was truncated since the last one."""
        if self._truncated_at:
            result = msgspec.structs.replace(result, truncated_at=self._truncated_at)
            self._truncated_at = 0
        return result
