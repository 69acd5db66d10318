"""What a step has made, and how the scheduler is told."""

from __future__ import annotations

import numpy as np

from baton.protocol.token_columns import pack, unpack
from baton.protocol.vector_columns import split
from baton_worker.engine.batch.step_outputs import Committed, StepOutputs
from tests.support.worker.plans import batch, plan


def outputs() -> StepOutputs:
    made = StepOutputs(batch().prepare(plan()))
    made.slots, made.counts = np.array([4, 2]), np.array([3, 1])
    made.tokens = np.array([7, 8, 9, 5], np.int32)
    return made


def test_the_last_token_of_each_slot_that_has_any() -> None:
    made = outputs()
    assert made.last_tokens.tolist() == [9, 5]
    made.wait(np.array([1]))
    assert made.last_tokens.tolist() == [9, 5] and made.counts.tolist() == [3, 1, 0]
    made.counts, made.tokens = np.array([1, 0, 1]), np.array([6, 4], np.int32)
    assert made.last_tokens.tolist() == [6, 4]


def test_numbers_that_are_not_finite_are_a_failure_of_their_own_kind() -> None:
    made = outputs()
    made.fail(np.array([1]), "its rules leave no token to sample")
    made.break_down(np.array([2]), "logits")
    assert made.broken == [2] and set(made.failed) == {1, 2}
    assert made.failed[2] == "the model's logits are not finite for this sequence"


def test_the_result_says_it_all() -> None:
    made = outputs()
    made.wait(np.array([1]))
    made.vectors, made.swap_seconds = {3: np.array([0.5], np.float32)}, 2e-6
    committed = Committed(np.array([0, 6, 2]), np.array([2]))
    result = made.result(plan(5), 2, committed, 3e-6, 4e-6)
    assert (result.step, result.duration_us, result.gap_us, result.swap_us) == (7, 3, 4, 2)
    assert unpack(result.rows, "I").tolist() == [4, 2, 1]
    assert unpack(result.first, "I").tolist() == [0, 6, 2]
    assert result.counts == bytes((3, 1, 0)) and result.tokens == pack([7, 8, 9, 5])
    assert result.finished == {2: "stop"} and set(split(result.pooled)) == {3}
