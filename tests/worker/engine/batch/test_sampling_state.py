"""What is done to the logits of each slot before a choice."""

from __future__ import annotations

import numpy as np
import pytest

from baton.protocol import Grammar
from baton_worker.engine.batch.logits_rows import LogitsRows
from baton_worker.sampling import TokenRules
from tests.support.worker.plans import batch, commit, entering, plan

PAGES = {slot: [slot] for slot in range(4)}


def test_adjustments_only_for_those_who_ask() -> None:
    held = batch()
    plain, penalised = entering(0, [1, 2]), entering(1, [3, 4, 5], 2, presence_penalty=1.0)
    biased = entering(2, [1], logit_bias={4: 2.0, 5: -1.0})
    patient = entering(3, [1], stop_ids=(8, 9), min_tokens=1)
    run = [(3, 0, 1, 1), (1, 0, 3, 1), (2, 0, 1, 1), (0, 0, 2, 1)]
    inputs = held.prepare(
        plan(new_sequences=(plain, penalised, biased, patient), pages=PAGES, run=run)
    )
    first = np.array([True, True, True, False])
    nothing = held.sampling.adjustments(inputs.logits.take(~first))
    assert (nothing.bias, nothing.forbidden, nothing.history) == (None, None, None)
    some = held.sampling.adjustments(inputs.logits.take(first))
    assert some.bias is not None and some.forbidden is not None and some.history is not None
    assert list(zip(some.bias.rows, some.bias.ids, some.bias.values, strict=True)) == [
        (2, 4, 2.0),
        (2, 5, -1.0),
    ]
    assert list(zip(some.forbidden.rows, some.forbidden.ids, strict=True)) == [(0, 8), (0, 9)]
    assert some.history.rows.tolist() == [1]
    assert some.history.tokens.tolist() == [[3, 4, 5]]
    assert some.history.sampled.tolist() == [[0, 0, 1]]
    commit(held, inputs, {3: [1]})
    after = held.prepare(plan(1, run=[(3, 1, 1, 1)])).logits
    assert held.sampling.adjustments(after).forbidden is None


def test_each_row_of_logits_looks_at_the_tokens_before_it() -> None:
    """Of a slot with several rows, the first knows nothing of what is behind it."""
    held = batch()
    asked = entering(1, [3, 4, 5, 6], 2, presence_penalty=1.0, bad_words=((7,),), min_tokens=2)
    held.prepare(plan(new_sequences=(asked,), pages={1: [0]}, run=[(1, 0, 4, 1)]))
    slots, lengths = np.array([1, 1]), np.array([3, 4])
    rows = LogitsRows(np.array([2, 3]), slots, lengths, lengths - 2, np.full(2, -1))
    made = held.sampling.adjustments(rows)
    assert made.history is not None and isinstance(made.rules, TokenRules)
    assert made.history.tokens.tolist() == [[3, 4, 5, 3], [3, 4, 5, 6]]
    assert made.history.sampled.tolist() == [[0, 0, 1, 0], [0, 0, 1, 1]]
    assert [log.tolist() for log in made.rules.logs] == [[5], [5, 6]]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"processors": {"other": "1"}}, "Unknown processors"),
        ({"grammar": Grammar("regex", "a")}, "no vocabulary to follow a grammar"),
        ({"bad_words": ((50,),)}, "outside the vocabulary of 50"),
    ],
)
def test_a_sequence_that_cannot_be_sampled_does_not_enter(
    fields: dict[str, object], why: str
) -> None:
    held = batch()
    inputs = held.prepare(plan(new_sequences=(entering(0, [1], **fields),)))
    assert why in inputs.failed[0] and held.sequences.done[0] and not held.going


def test_a_slot_forgets_biases_and_rules() -> None:
    held = batch()
    asked = entering(0, [1], logit_bias={4: 2.0}, allowed_ids=(3,))
    inputs = held.prepare(plan(new_sequences=(asked,), pages={0: [0]}, run=[(0, 0, 1, 1)]))
    made = held.sampling.adjustments(inputs.logits)
    assert made.bias is not None and made.rules is not None
    commit(held, inputs)
    again = plan(
        1, release=[0], new_sequences=(entering(0, [1]),), pages={0: [0]}, run=[(0, 0, 1, 1)]
    )
    made = held.sampling.adjustments(held.prepare(again).logits)
    assert made.bias is None and made.rules is None
