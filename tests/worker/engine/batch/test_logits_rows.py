"""Parallel columns stay parallel."""

from __future__ import annotations

import numpy as np

from baton_worker.engine.batch.logits_rows import LogitsRows


def test_rows_are_taken_with_all_their_columns() -> None:
    columns = (np.array([2, 5, 6]), np.array([4, 0, 0]), np.array([9, 3, 4]), np.array([1, 2, 3]))
    every = LogitsRows(*columns, drafts=np.array([-1, 7, -1]))
    assert every.first.tolist() == [True, True, False]
    rows = every.take(np.array([False, True, True]))
    assert rows.drafts.tolist() == [7, -1]
    assert len(rows) == 2 and rows.slots.tolist() == [0, 0]
    assert (rows.indices.tolist(), rows.lengths.tolist(), rows.index.tolist()) == (
        [5, 6],
        [3, 4],
        [2, 3],
    )
