"""The slots: what plans do to them, and every plan that is refused."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from baton.protocol import NewSequence, Plan
from baton.protocol.token_columns import pack
from baton_worker.engine.batch.plan_columns import PlanError
from baton_worker.engine.batch.step_outputs import StepOutputs
from tests.support.worker.plans import batch, commit, entering, plan, with_prompt


def test_enter_append_run() -> None:
    held = with_prompt()
    assert len(held) == 1
    assert held.sequences.tokens[2, :6].tolist() == [1, 2, 3, 4, 5, 6]
    assert held.tables.tables[0, 2, :2].tolist() == [5, 3]
    held = with_prompt(sampled=9)
    inputs = held.prepare(plan(1, run=[(2, 6, 1, 1)]))
    assert (inputs.rows.starts.tolist(), inputs.rows.counts.tolist()) == ([6], [1])
    assert (inputs.tokens.tolist(), inputs.positions.tolist()) == ([9], [6])
    assert inputs.logits.index.tolist() == [1] and inputs.logits.lengths.tolist() == [7]
    committed = commit(held, inputs, {2: [8]})
    assert committed.first.tolist() == [1] and committed.stopped.tolist() == []


def test_release_makes_room_in_the_same_plan() -> None:
    held = with_prompt()
    new = entering(2, [7, 8])
    inputs = held.prepare(
        plan(1, release=[2], new_sequences=(new,), pages={2: [5]}, run=[(2, 0, 2, 1)])
    )
    assert len(inputs) == 1 and held.sequences.tokens[2, :2].tolist() == [7, 8]
    assert held.tables.num_pages[2] == 1


def test_continued_sequence_keeps_its_log() -> None:
    held = batch()
    new = entering(0, [1, 2, 3, 4], 2, prompt_logprobs=1)
    inputs = held.prepare(plan(new_sequences=(new,), pages={0: [0]}, run=[(0, 0, 4, 1)]))
    assert inputs.logits.index.tolist() == [2] and inputs.prompt_spans == ()
    assert held.sampling.parameters[0]["prompt_logprobs"] == -1


def test_rows_one_after_the_other() -> None:
    held = batch()
    first, second = entering(1, [1] * 7, computed=4), entering(0, [2] * 3)
    inputs = held.prepare(
        plan(
            new_sequences=(first, second),
            pages={1: [0, 1], 0: [2]},
            run=[(1, 4, 3, 1), (0, 0, 2, 0)],
        )
    )
    assert inputs.tokens.tolist() == [1, 1, 1, 2, 2]
    assert inputs.positions.tolist() == [4, 5, 6, 0, 1]
    assert inputs.lengths.tolist() == [7, 3]
    assert (inputs.logits.indices.tolist(), inputs.logits.slots.tolist()) == ([2], [1])


def test_stop_id_ends_and_later_rows_are_skipped() -> None:
    held = batch()
    new = entering(2, [1, 2], stop_ids=(11, 12, 13))
    inputs = held.prepare(plan(new_sequences=(new,), pages={2: [5]}, run=[(2, 0, 2, 1)]))
    assert commit(held, inputs, {2: [12]}).stopped.tolist() == [2]
    assert len(held.prepare(plan(1, run=[(2, 2, 1, 1)]))) == 0
    assert len(held) == 1 and not held.going


def test_stop_ids_of_different_numbers() -> None:
    held = batch()
    sequences = (entering(0, [1], stop_ids=(4,)), entering(1, [1], stop_ids=(5, 6, 7)))
    inputs = held.prepare(plan(new_sequences=(*sequences, entering(3, [1]))))
    assert commit(held, inputs, {0: [5], 1: [7], 3: [0]}).stopped.tolist() == [1]


def test_several_tokens_or_none_for_each_slot() -> None:
    """What has run behind the last that is accepted has to run again."""
    held = batch()
    new = (entering(0, [1, 2]), entering(1, [3] * 5), entering(3, [4, 5, 6]))
    pages = {0: [0, 1], 1: [2, 3], 3: [4, 5]}
    first = held.prepare(plan(new_sequences=new, pages=pages, run=[(0, 0, 2, 1), (3, 0, 3, 1)]))
    committed = commit(held, first, {0: [7, 8, 9], 1: [], 3: [6]})
    assert committed.first.tolist() == [0, 0, 0]
    assert held.sequences.lengths[[0, 1, 3]].tolist() == [5, 5, 4]
    assert held.sequences.tokens[0, :5].tolist() == [1, 2, 7, 8, 9]
    assert held.sequences.computed[[0, 1, 3]].tolist() == [2, 0, 3]
    # Three tokens run on approval behind slot 0, and two of them are not accepted.
    held.sequences.lengths[0], held.sequences.computed[0] = 3, 2
    second = held.prepare(plan(1, run=[(0, 2, 1, 1)]))
    replaced = dataclasses.replace(second.rows, counts=second.rows.counts + 3)
    drafted = dataclasses.replace(second, rows=replaced)
    commit(held, drafted, {0: [8, 30]})
    assert held.sequences.tokens[0, :5].tolist() == [1, 2, 7, 8, 30]
    assert (held.sequences.lengths[0], held.sequences.computed[0]) == (5, 4)


def test_who_has_failed_or_has_a_vector_is_done() -> None:
    held = batch()
    inputs = held.prepare(
        plan(new_sequences=(entering(0, [1]), entering(1, [1]), entering(2, [1])))
    )
    outputs = StepOutputs(inputs)
    outputs.fail(np.array([1]), "it had to")
    outputs.vectors = {2: np.zeros(3, np.float32)}
    held.commit(outputs)
    assert held.sequences.done.tolist() == [False, True, True, False] and held.going


@pytest.mark.parametrize(
    "new",
    [
        entering(0, [1, 50]),
        entering(0, [-1]),
        entering(0, [1], stop_ids=(50,)),
        entering(0, [1], logit_bias={99: 1.0}),
    ],
)
def test_ids_outside_the_vocabulary_fail_one_row(new: NewSequence) -> None:
    held = batch()
    good = entering(1, [1, 2])
    inputs = held.prepare(
        plan(new_sequences=(new, good), pages={0: [0], 1: [1]}, run=[(0, 0, 1, 1), (1, 0, 2, 1)])
    )
    assert inputs.rows.slots.tolist() == [1]
    assert set(inputs.failed) == {0} and "vocabulary" in inputs.failed[0]


REFUSED = {
    "lost plan": plan(2),
    "repeated plan": plan(0),
    "release of nothing": plan(1, release=[1]),
    "slot out of range": plan(1, new_sequences=(entering(4, [1]),)),
    "slot taken": plan(1, new_sequences=(entering(2, [1]),)),
    "empty sequence": plan(1, new_sequences=(entering(0, []),)),
    "more prompt than tokens": plan(1, new_sequences=(entering(0, [1], 2),)),
    "nothing left to compute": plan(1, new_sequences=(entering(0, [1, 2], computed=2),)),
    "less than nothing computed": plan(1, new_sequences=(entering(0, [1, 2], computed=-1),)),
    "start before a cached prefix ends": plan(
        1, new_sequences=(entering(0, [1] * 6, computed=4),), pages={0: [0, 1]}, run=[(0, 0, 6, 1)]
    ),
    "too long": plan(1, new_sequences=(entering(0, [1] * 17),)),
    "pages for nobody": plan(1, pages={1: [0]}),
    "no such page": plan(1, pages={2: [8]}),
    "more pages than a sequence needs": plan(1, pages={2: [0, 1, 2]}),
    "unknown slot": plan(1, run=[(9, 0, 1, 1)]),
    "slot not held": plan(1, run=[(1, 0, 1, 1)]),
    "row twice": plan(1, run=[(2, 6, 1, 1), (2, 6, 1, 1)]),
    "start behind": plan(1, run=[(2, 5, 1, 0)]),
    "no token": plan(1, run=[(2, 6, 0, 0)]),
    "token not there yet": plan(1, run=[(2, 6, 2, 1)]),
    "columns of different lengths": Plan(0, 1, pack([2], "I"), b"", b"", b""),
    "cut off": Plan(0, 1, b"\0\0\0", b"", b"", b""),
}


@pytest.mark.parametrize("bad", REFUSED.values(), ids=REFUSED.keys())
def test_bad_plans_are_refused(bad: Plan) -> None:
    held = with_prompt(sampled=9)
    with pytest.raises(PlanError):
        held.prepare(bad)


def test_rows_beyond_pages_are_refused() -> None:
    with pytest.raises(PlanError, match="pages"):
        batch().prepare(
            plan(new_sequences=(entering(0, [1] * 5),), pages={0: [0]}, run=[(0, 0, 5, 1)])
        )


def test_sampling_before_the_last_token_is_refused() -> None:
    with pytest.raises(PlanError, match="samples before"):
        batch().prepare(
            plan(new_sequences=(entering(0, [1] * 3),), pages={0: [0]}, run=[(0, 0, 2, 1)])
        )


def test_sampling_beyond_the_longest_sequence_is_refused() -> None:
    held = batch(max_model_len=4)
    with pytest.raises(PlanError, match="longest"):
        held.prepare(
            plan(new_sequences=(entering(0, [1] * 4),), pages={0: [0]}, run=[(0, 0, 4, 1)])
        )
