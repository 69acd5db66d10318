"""The result of a step that was begun."""

from __future__ import annotations

import numpy as np

from baton_worker.engine.async_scheduling.prepared_step import PreparedStep
from baton_worker.engine.batch.step_outputs import Committed, StepOutputs
from tests.support.worker.plans import batch, entering, plan

NOTHING = Committed(np.zeros(0, np.int64), np.zeros(0, np.int64))


def prepared(rows: bool) -> PreparedStep:
    sent, held = plan(), batch()
    if rows:
        new = (entering(0, [5, 6]),)
        sent = plan(new_sequences=new, run=[(0, 0, 2, 1)], pages={0: [1]})
    inputs = held.prepare(sent)
    return PreparedStep(sent, 1, inputs, StepOutputs(inputs), begin=2.0, gap=0.5)


def test_a_result_has_the_number_and_the_times_of_its_step() -> None:
    result = prepared(rows=True).result(NOTHING, 3.0, 3.25)
    assert (result.step, result.duration_us, result.gap_us) == (1, 250_000, 500_000)


def test_a_step_without_rows_leaves_no_gap() -> None:
    assert prepared(rows=False).result(NOTHING, 3.0, 3.25).gap_us == 0
