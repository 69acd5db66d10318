"""The rows of a plan, and where their tokens are."""

from __future__ import annotations

import numpy as np
import pytest

from baton.protocol.token_columns import pack
from baton_worker.engine.batch.batch_rows import BatchRows
from baton_worker.engine.batch.plan_columns import PlanError
from tests.support.worker.plans import plan

MADE = plan(run=[(1, 4, 3, 1), (0, 0, 2, 0), (3, 9, 1, 1)])


def test_flat_positions() -> None:
    rows = BatchRows.of(MADE)
    row, position = rows.flat()
    assert row.tolist() == [0, 0, 0, 1, 1, 2]
    assert position.tolist() == [4, 5, 6, 0, 1, 9]
    assert rows.last.tolist() == [2, 4, 5]
    assert rows.take(np.array([False, True, True])).last.tolist() == [1, 2]


def test_rows_go_on_where_their_plan_says_so() -> None:
    made = plan(num_steps=3, run=[(1, 4, 1, 1), (0, 5, 1, 1)], steps_per_row=pack([2, 3], "I"))
    assert [len(BatchRows.of(made, turn).going_on(made, turn)) for turn in (1, 2)] == [2, 1]
    assert BatchRows.of(made, 2).going_on(made, 2).starts.tolist() == [7]


@pytest.mark.parametrize(
    ("turns", "run", "match"),
    [
        ([2], [(1, 4, 1, 1), (0, 5, 1, 1)], "do not match"),
        ([2, 2], [(1, 4, 1, 1), (0, 5, 1, 1)], "do not match"),
        ([3, 3], [(1, 4, 1, 1), (0, 5, 1, 0)], "does not decode"),
        ([3, 3], [(1, 4, 2, 1), (0, 5, 1, 1)], "does not decode"),
    ],
)
def test_a_plan_that_cannot_go_on_is_refused(
    turns: list[int], run: list[tuple[int, ...]], match: str
) -> None:
    made = plan(num_steps=3, run=run, steps_per_row=pack(turns, "I"))
    with pytest.raises(PlanError, match=match):
        BatchRows.of(made, 1).going_on(made, 1)
