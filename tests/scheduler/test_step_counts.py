from __future__ import annotations

import numpy as np

from baton_scheduler.step_counts import StepCounts


def test_a_slot_counts_from_the_time_it_was_taken() -> None:
    counts = StepCounts(2)
    counts.start(0)
    counts.add_steps(1, 1)
    counts.start(1)
    counts.add_steps(4, 7)
    counts.add_drafts(np.array([0, 1]), np.array([3, 2]), np.array([1, 2]))
    assert counts.steps(0) == (5, 8) and counts.drafts(0) == (3, 1)
    assert counts.steps(1) == (4, 7) and counts.drafts(1) == (2, 2)
    counts.start(1)
    assert counts.steps(1) == (0, 0) and counts.drafts(1) == (0, 0)
