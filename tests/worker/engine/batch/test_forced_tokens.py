"""Tokens that a grammar forces: how many there is room for, and who runs ahead."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from baton_worker.engine.batch.input_batch import InputBatch
from baton_worker.structured_output.manager import StructuredOutputManager
from tests.support.worker.plans import batch, commit, entering, plan


class Endless(StructuredOutputManager):
    """Every sequence must go on with the same token, for ever."""

    def __init__(self) -> None:
        super().__init__(None, 50)

    def jumps(self, slot: int) -> bool:
        """See `StructuredOutputManager`."""
        return True

    def run(self, slot: int, stops: Collection[int], most: int) -> list[int]:
        """See `StructuredOutputManager`."""
        return [30 + slot] * most


def held(pages: int, **sizes: Any) -> InputBatch:
    """Slot 0 has entered with three tokens."""
    made = batch(constraints=Endless(), **sizes)
    made.prepare(plan(new_sequences=(entering(0, [1, 2, 3]),), pages={0: list(range(pages))}))
    return made


@pytest.mark.parametrize(
    ("pages", "sizes", "count"),
    [
        (2, {}, 5),  # Pages end at 8 tokens.
        (4, {}, 8),  # Nine may be produced, and one of them is sampled.
        (4, {"max_num_batched_tokens": 7}, 4),  # Three tokens of a step run anyway.
    ],
)
def test_forced_tokens_end_where_there_is_no_room(
    pages: int, sizes: dict[str, int], count: int
) -> None:
    here = held(pages, **sizes)
    inputs = here.prepare(plan(1, run=[(0, 0, 3, 1)]))
    assert inputs.forced[0] == count and inputs.rows.counts.tolist() == [3 + count]
    assert inputs.tokens.tolist() == [1, 2, 3, *[30] * count]
    assert inputs.lengths.tolist() == inputs.logits.lengths.tolist() == [3 + count]
    assert here.sequences.lengths[0] == 3, "they are not in the log before they are committed"


def test_a_row_that_does_not_sample_is_forced_to_nothing() -> None:
    here = held(4)
    inputs = here.prepare(plan(1, run=[(0, 0, 2, 0)]))
    assert not inputs.forced.any() and inputs.tokens.tolist() == [1, 2]


def test_a_sequence_decodes_where_it_stands_and_waits_at_the_end_of_its_pages() -> None:
    here = held(2)
    inputs = here.prepare(plan(1, run=[(0, 0, 3, 1)]))
    commit(here, inputs, {0: [*[30] * 5, 9]})
    # The scheduler believes that one token was sampled.
    waits = here.prepare(plan(2, run=[(0, 3, 1, 1)]))
    assert len(waits) == 0 and waits.stalled.tolist() == [0]
    assert commit(here, waits, {0: []}).first.tolist() == [6]
    goes = here.prepare(plan(3, pages={0: [2]}, run=[(0, 4, 1, 1)]))
    assert goes.rows.starts.tolist() == [8] and goes.tokens.tolist() == [9, 30, 30]


def test_who_has_produced_all_that_is_wanted_is_done() -> None:
    here = held(4)
    inputs = here.prepare(plan(1, run=[(0, 0, 3, 1)]))
    commit(here, inputs, {0: [*[30] * 8, 9]})
    assert here.sequences.done[0] and not here.going
