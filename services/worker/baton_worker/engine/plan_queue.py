"""The plans that wait, and how far the first of them has come.

    plan 7: steps 7 8 9 10     plan 11: step 11
                    ^ the next one to begin

A plan of several steps can be cut while it runs: it then ends with the next of its steps that
begins, the first one included, and the result that is sent next says so. What the scheduler had
planned for later steps of it never happens; its next plan begins right behind.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import msgspec

from baton.protocol import Plan, Result


class PlanStep(NamedTuple):
    """One step of a plan: `turn` counts from 0."""

    plan: Plan
    turn: int


class PlanQueue:
    """First in, first out, step by step."""

    def __init__(self) -> None:
        self._plans: deque[Plan] = deque()
        self._turn = 0
        self._until = 0
        self.ended = 0
        """Plans that are over since the start."""

    def __len__(self) -> int:
        return len(self._plans)

    def add(self, plan: Plan) -> None:
        """Let a plan wait."""
        self._plans.append(plan)

    def clear(self) -> None:
        """Forget everything."""
        self.ended += len(self._plans)
        self._plans.clear()
        self._turn = self._until = 0

    def cut(self, step: int) -> None:
        """End the plan that begins at `step` with the next of its steps that begins. One that is
        not here, or comes to its end by then anyway, is left alone."""
        for number, plan in enumerate(self._plans):
            turns = 1 + (self._turn if number == 0 else 0)
            if plan.step == step and turns < plan.num_steps:
                self._plans[number] = msgspec.structs.replace(plan, num_steps=turns)
                self._until = step + turns - 1

    @property
    def first(self) -> PlanStep:
        """The step to run now; there must be one."""
        return PlanStep(self._plans[0], self._turn)

    def advance(self) -> None:
        """The first step is over."""
        self._turn += 1
        if self._turn >= self._plans[0].num_steps:
            self._plans.popleft()
            self._turn = 0
            self.ended += 1

    def tell(self, result: Result) -> Result:
        """The result as it is to be sent: with the end of a plan that was cut since the last."""
        if self._until:
            result = msgspec.structs.replace(result, truncated_at=self._until)
            self._until = 0
        return result
