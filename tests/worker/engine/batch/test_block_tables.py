"""The pages of each slot: what plans append and drop, group by group."""

from __future__ import annotations

import numpy as np
import pytest

from baton.protocol import Plan
from baton.protocol.token_columns import pack
from baton_worker.engine.batch.input_batch import InputBatch
from baton_worker.engine.batch.plan_columns import PlanError
from tests.support.worker.plans import batch, commit, entering, plan, with_prompt


def test_pages_hold_so_many_tokens() -> None:
    tables = with_prompt().tables
    assert tables.room(np.array([2, 0])).tolist() == [8, 0] and tables.room_of(2) == 8
    assert tables.pages(2) == [5, 3]
    tables.enter(2)
    assert tables.room_of(2) == 0


def with_window(window: int) -> InputBatch:
    """Slot 1 has entered with 13 tokens on four pages, and has run them all."""
    held = batch(windows=(window,))
    first = entering(1, list(range(1, 14)))
    pages = {1: [5, 3, 7, 2]}
    commit(
        held, held.prepare(plan(new_sequences=(first,), pages=pages, run=[(1, 0, 13, 1)])), {1: [9]}
    )
    return held


def dropping(*numbers: int, counts: tuple[int, ...] = ()) -> Plan:
    return plan(1, drop_rows=pack(numbers, "I"), drop_counts=pack(counts, "I"))


def test_the_first_page_that_is_left_stands_for_those_before() -> None:
    held = with_window(5)
    held.prepare(dropping(1, counts=(2,)))
    assert held.tables.tables[0, 1, :4].tolist() == [7, 7, 7, 2]
    assert held.tables.num_pages[1] == 4 and held.tables.pages(1) == [7, 7, 7, 2]
    assert len(held.prepare(plan(2, pages={1: []}, run=[(1, 13, 1, 1)]))) == 1


@pytest.mark.parametrize(
    ("window", "bad", "match"),
    [
        (5, dropping(1, counts=(3,)), "still seen"),
        (0, dropping(1, counts=(1,)), "still seen"),
        (5, dropping(1), "disagree in length"),
        (5, dropping(2, counts=(1,)), "drop pages that hold no sequence"),
    ],
)
def test_a_bad_drop_is_refused(window: int, bad: Plan, match: str) -> None:
    with pytest.raises(PlanError, match=match):
        with_window(window).prepare(bad)


def grouped() -> InputBatch:
    """Slot 1 has entered behind 8 cached tokens, on four blocks: one group sees them all, the other
    the last three, whose pages begin with block 1."""
    held = batch(windows=(0, 3), num_pages=12, max_model_len=24)
    given = plan(
        new_sequences=(entering(1, list(range(1, 14)), computed=8),),
        run=[(1, 8, 5, 1)],
        page_rows=pack([1, 1], "I"),
        page_counts=pack([4, 3], "I"),
        pages=pack([5, 3, 7, 2, 0, 4, 6], "I"),
        page_groups=bytes((0, 1)),
        drop_rows=pack([1], "I"),
        drop_counts=pack([1], "I"),
        drop_groups=bytes((1,)),
    )
    commit(held, held.prepare(given))
    return held


def test_each_group_has_a_table_of_its_own() -> None:
    held = grouped()
    assert held.tables.tables[:, 1, :4].tolist() == [[5, 3, 7, 2], [0, 0, 4, 6]]
    assert held.tables.num_pages[1] == 4
    more = plan(
        1,
        page_rows=pack([1, 1], "I"),
        page_counts=pack([2, 1], "I"),
        pages=pack([1, 8, 9], "I"),
        page_groups=bytes((0, 1)),
        drop_rows=pack([1], "I"),
        drop_counts=pack([2], "I"),
        drop_groups=bytes((1,)),
    )
    held.prepare(more)
    assert held.tables.tables[1, 1, :5].tolist() == [4, 4, 4, 6, 9]
    assert held.tables.num_pages[1] == 5, "the group that has least counts"


@pytest.mark.parametrize(
    ("columns", "match"),
    [
        ({"drop_groups": bytes((0,))}, "still seen"),
        ({"drop_counts": pack([3], "I")}, "still seen"),
        ({"drop_groups": bytes((2,))}, "groups of pages"),
        ({"drop_groups": bytes((1, 1))}, "groups of pages"),
    ],
)
def test_groups_that_are_not_there_are_refused(columns: dict[str, bytes], match: str) -> None:
    rows = {"drop_rows": pack([1], "I"), "drop_counts": pack([1], "I"), "drop_groups": b"\1"}
    with pytest.raises(PlanError, match=match):
        grouped().prepare(plan(1, **(rows | columns)))
