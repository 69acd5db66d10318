"""Token logs: how they grow, and how far they are computed."""

from __future__ import annotations

import numpy as np
import pytest

from baton_worker.engine.batch.batch_rows import BatchRows
from baton_worker.engine.batch.plan_columns import PlanError
from baton_worker.engine.batch.sequence_states import SequenceStates
from tests.support.worker.plans import entering


def states() -> SequenceStates:
    made = SequenceStates(3, 12)
    made.enter(entering(0, [1, 2, 3], 2, computed=1))
    made.enter(entering(2, [4, 5]))
    return made


def test_a_sequence_enters_with_its_log() -> None:
    held = states()
    assert len(held) == 2 and held.log(0, 3).tolist() == [3] and held.log(2, 2).tolist() == []
    assert held.first_index(np.array([2, 0])).tolist() == [0, 1]
    assert held.ends.tolist() == [11, 0, 11]


def test_logs_grow_by_different_numbers_of_tokens() -> None:
    held = states()
    held.advance(
        BatchRows(np.array([0, 2]), np.array([1, 0]), np.array([6, 2]), np.ones(2, np.bool_))
    )
    assert held.computed.tolist() == [7, 0, 2]
    held.append(np.array([2, 0]), np.array([1, 3]), np.array([9, 6, 7, 8], np.int32))
    assert held.lengths.tolist() == [6, 0, 3]
    assert held.log(0, 6).tolist() == [3, 6, 7, 8] and held.log(2, 3).tolist() == [9]
    # Seven tokens of the first ran, and six are left of it: the last one is to be run.
    assert held.computed.tolist() == [5, 0, 2]


def test_a_slot_that_holds_nothing_is_not_released() -> None:
    held = states()
    held.release(np.array([2]))
    with pytest.raises(PlanError, match="slots to release"):
        held.release(np.array([2]))
    held.done[0] = True
    assert len(held) == 1 and not held.going
