"""Drafts stay up to the first that is not what was sampled."""

from __future__ import annotations

import numpy as np
import pytest

from baton_worker.engine.batch.logits_rows import LogitsRows
from baton_worker.engine.speculation.verification import NO_TOKEN, accepted


@pytest.mark.row("F08.12")
def test_rows_up_to_the_first_difference_of_each_slot_stay() -> None:
    slots = np.array([3, 3, 3, 1, 2, 2, 0, 0])
    drafts = np.array([5, 6, -1, -1, 7, -1, 8, -1])
    tokens = np.array([5, 9, 4, 2, 7, NO_TOKEN, NO_TOKEN, 8], np.int32)
    rows = LogitsRows(np.arange(8), slots, np.arange(8), np.arange(8), drafts)
    stays = accepted(rows, tokens)
    assert stays.tolist() == [True, True, False, True, True, False, False, False]
