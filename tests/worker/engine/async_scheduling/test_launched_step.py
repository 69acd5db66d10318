"""Rows of a step that was launched before it was known who ends."""

from __future__ import annotations

from typing import Any

import numpy as np

from baton_worker.engine.async_scheduling.launched_step import LaunchedStep


def test_rows_of_ended_sequences_are_not_live() -> None:
    none: Any = None
    step = LaunchedStep(none, np.zeros(0, np.int64), None)
    slots = np.array([4, 2, 7])
    assert step.ready and step.live(slots).all()
    step.over |= {2: [5], 9: []}
    assert step.live(slots).tolist() == [True, False, True]
