"""Which texts of a step are complete, and what is said of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from baton.protocol import NewSequence, Plan, Pooling, Sampling
from baton.protocol.token_columns import pack
from baton_worker.engine.batch.input_batch import BatchSizes, InputBatch
from baton_worker.engine.batch.plan_columns import PlanError
from baton_worker.engine.batch.step_outputs import StepOutputs
from baton_worker.engine.outputs.pooling_step import PoolingStep
from baton_worker.layers.build_context import BuildContext
from baton_worker.pooling.pooler import Pooler
from baton_worker.pooling.recipe import PoolingRecipe

SITE = BuildContext(torch.device("cpu"), torch.float32, lambda role: role)


def batch() -> InputBatch:
    return InputBatch(BatchSizes(4, 16, page_size=4, num_pages=16, vocab_size=50))


def pools(**fields: object) -> PoolingStep:
    given = {"task": "embed", "take": "mean", "finish": "identity", "width": 2}
    return PoolingStep(Pooler(PoolingRecipe(**given | fields), SITE))  # type: ignore[arg-type]


def plan(
    step: int, rows: dict[int, tuple[int, int]], *new: NewSequence, release: bytes = b""
) -> Plan:
    """Rows are slot -> (start, count); new ones get two pages each."""
    slots = [one.slot for one in new]
    return Plan(
        1,
        step,
        rows=pack(rows, "I"),
        num_computed=pack((start for start, _ in rows.values()), "I"),
        num_scheduled=pack((count for _, count in rows.values()), "I"),
        samples=bytes(len(rows)),
        new_sequences=new,
        release=release,
        page_rows=pack(slots, "I"),
        page_counts=pack([2] * len(slots), "I"),
        pages=pack((2 * slot + i for slot in slots for i in range(2)), "I"),
    )


def text(slot: int, length: int, **fields: object) -> NewSequence:
    pooling = Pooling(reach="every", **fields)  # type: ignore[arg-type]
    return NewSequence(slot, pack([3] * length), length, Sampling(0), pooling=pooling)


def stepped(held: InputBatch, some: PoolingStep, asked: Plan, states: torch.Tensor) -> StepOutputs:
    inputs = held.prepare(asked)
    outputs = StepOutputs(inputs)
    some.enter(asked)
    some.step(inputs, states, outputs)
    held.commit(outputs)
    return outputs


def test_a_text_is_complete_with_its_last_chunk() -> None:
    held, some = batch(), pools()
    first = plan(1, {0: (0, 3), 1: (0, 2)}, text(0, 5), text(1, 2))
    states = torch.arange(10, dtype=torch.float32).view(5, 2)
    vectors = stepped(held, some, first, states).vectors
    assert set(vectors) == {1} and vectors[1].tolist() == [7.0, 8.0]
    vectors = stepped(held, some, plan(2, {0: (3, 2)}), torch.full((2, 2), 10.0)).vectors
    assert vectors[0] == pytest.approx(np.array([26 / 5, 29 / 5]))


def test_a_vector_that_is_not_finite_costs_its_own_text() -> None:
    states = torch.arange(10, dtype=torch.float32).view(5, 2)
    states[1, 1] = torch.inf
    first = plan(1, {0: (0, 3), 1: (0, 2)}, text(0, 3), text(1, 2))
    outputs = stepped(batch(), pools(), first, states)
    assert set(outputs.vectors) == {1} and outputs.broken == [0]
    assert outputs.failed == {0: "the model's vectors are not finite for this sequence"}


def test_a_text_that_has_failed_already_gets_no_vector() -> None:
    held, some = batch(), pools()
    first = plan(1, {0: (0, 3), 1: (0, 2)}, text(0, 3), text(1, 2))
    inputs = held.prepare(first)
    outputs = StepOutputs(inputs)
    outputs.break_down(np.array([1]), "hidden states")
    some.step(inputs, torch.ones(5, 2), outputs)
    assert set(outputs.vectors) == {0} and outputs.broken == [1]


def test_a_model_that_pools_itself_gives_one_state_per_text() -> None:
    held, some = batch(), pools(take="first")
    first = plan(1, {0: (0, 3), 1: (0, 2)}, text(0, 3), text(1, 2))
    vectors = stepped(held, some, first, torch.tensor([[1.0, 2.0], [3.0, 4.0]])).vectors
    assert {slot: v.tolist() for slot, v in vectors.items()} == {0: [1.0, 2.0], 1: [3.0, 4.0]}


def test_a_sequence_that_left_leaves_nothing_behind() -> None:
    held, some = batch(), pools()
    first = plan(1, {0: (0, 3)}, text(0, 5))
    stepped(held, some, first, torch.ones(3, 2))
    again = plan(2, {0: (0, 2)}, text(0, 2), release=pack([0], "I"))
    vectors = stepped(held, some, again, torch.full((2, 2), 5.0)).vectors
    assert vectors[0].tolist() == [5.0, 5.0]


def test_steps_of_a_text_are_rows() -> None:
    held, some = batch(), pools(take="steps", step_id=3)
    first = plan(1, {0: (0, 2)}, text(0, 2))
    vectors = stepped(held, some, first, torch.tensor([[1.0, 2.0], [3.0, 4.0]])).vectors
    assert vectors[0].tolist() == [1.0, 2.0, 3.0, 4.0]


def test_a_generator_is_not_asked_for_vectors() -> None:
    with pytest.raises(PlanError, match="text only"):
        PoolingStep(None).enter(plan(1, {}, text(0, 2)))
    PoolingStep(None).enter(plan(1, {}, NewSequence(0, pack([3]), 1, Sampling(1))))
