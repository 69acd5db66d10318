"""The rows of one step: a sequence each, with its new tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from baton.protocol import Plan
from baton_worker.engine.batch.plan_columns import Column, PlanError, check_lengths, column


@dataclass(frozen=True, slots=True)
class BatchRows:
    """Rows of a plan as parallel columns [B], in the order of the plan."""

    slots: Column
    starts: Column
    counts: Column
    samples: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, plan: Plan, turn: int = 0) -> BatchRows:
        """The rows of step `turn` of a plan, counted from 0.

        Raises:
            PlanError: its columns disagree, or a slot runs twice.
        """
        rows = cls(
            column(plan.rows, "<u4"),
            column(plan.num_computed, "<u4") + turn,
            column(plan.num_scheduled, "<u4"),
            np.frombuffer(plan.samples, np.uint8) > 0,
        )
        check_lengths("row", rows.slots, rows.starts, rows.counts, rows.samples)
        return rows

    def __len__(self) -> int:
        return len(self.slots)

    def take(self, chosen: npt.NDArray[np.bool_]) -> BatchRows:
        """The rows where `chosen` holds."""
        if np.count_nonzero(chosen) == len(self):
            return self
        return BatchRows(
            self.slots[chosen], self.starts[chosen], self.counts[chosen], self.samples[chosen]
        )

    @property
    def last(self) -> Column:
        """Index of each row's last token on the flat token axis: int64 [B]."""
        last: Column = np.cumsum(self.counts) - 1
        return last

    def flat(self) -> tuple[Column, Column]:
        """(row, position in its sequence) of every new token: int64 [T] each."""
        rows, ends = np.arange(len(self)), np.cumsum(self.counts)
        if not len(self) or ends[-1] == len(self):  # One token per row.
            return rows, self.starts
        rows = np.repeat(rows, self.counts)
        return rows, np.arange(len(rows)) - (ends - self.counts - self.starts)[rows]

    def going_on(self, plan: Plan, turn: int) -> BatchRows:
        """The rows of a plan that take part in this step.

        Raises:
            PlanError: the plan's step counts are incomplete, or it repeats a row that does not
                decode.
        """
        turns = column(plan.steps_per_row, "<u4")
        if len(turns) != len(self) or turns.max(initial=0) < plan.num_steps:
            raise PlanError("The turns of a plan do not match its rows and steps.")
        chosen = turns > turn
        if np.count_nonzero(chosen & ~(self.samples & (self.counts == 1))):
            raise PlanError("A plan repeats a row that does not decode.")
        return self.take(chosen)
