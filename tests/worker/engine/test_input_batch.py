"""The slots: what plans do to them, and every plan that is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from baton.protocol import NewSequence, Plan, Sampling
from baton.protocol.token_columns import pack
from baton_worker.engine.input_batch import InputBatch, PlanError


def batch(**changes: Any) -> InputBatch:
    sizes = {
        "max_num_seqs": 4,
        "max_model_len": 16,
        "page_size": 4,
        "num_pages": 8,
        "vocab_size": 50,
    }
    return InputBatch(**sizes | changes)


def plan(step: int = 0, **columns: Any) -> Plan:
    """A plan from lists; rows are (slot, start, count, samples)."""
    rows = columns.pop("run", [])
    slots, starts, counts, samples = zip(*rows, strict=True) if rows else ((), (), (), ())
    fields: dict[str, Any] = {
        "rows": pack(slots, "I"),
        "num_computed": pack(starts, "I"),
        "num_scheduled": pack(counts, "I"),
        "samples": pack(samples, "B"),
        "release": pack(columns.pop("release", ()), "I"),
    }
    if "page_rows" not in columns:
        pages = columns.pop("pages", {})
        fields["page_rows"] = pack(pages, "I")
        fields["page_counts"] = pack((len(p) for p in pages.values()), "I")
        fields["pages"] = pack((page for p in pages.values() for page in p), "I")
    return Plan(epoch=0, step=step, **(fields | columns))


def entering(
    slot: int, tokens: list[int], num_prompt: int = 0, computed: int = 0, **sampling: Any
) -> NewSequence:
    settings = Sampling(9, **sampling)
    return NewSequence(
        slot, pack(tokens), num_prompt or len(tokens), settings, num_computed=computed
    )


def with_prompt(tokens: int = 6, **sampling: Any) -> InputBatch:
    """Slot 2 has entered with a prompt, two pages, and has run it all."""
    held = batch()
    first = entering(2, list(range(1, tokens + 1)), **sampling)
    rows, _ = held.apply(plan(new_sequences=(first,), pages={2: [5, 3]}, run=[(2, 0, tokens, 1)]))
    held.advance(rows)
    return held


def test_enter_append_run() -> None:
    held = with_prompt()
    assert len(held) == 1
    assert held.tokens[2, :6].tolist() == [1, 2, 3, 4, 5, 6]
    assert held.pages[2, :2].tolist() == [5, 3]
    assert held.first_index(np.array([2])).tolist() == [0]
    assert held.accept(np.array([2]), np.array([9], np.int32)).tolist() == []
    rows, _ = held.apply(plan(1, run=[(2, 6, 1, 1)]))
    assert (rows.starts.tolist(), rows.counts.tolist()) == ([6], [1])
    assert held.first_index(np.array([2])).tolist() == [1]


def test_release_makes_room_in_the_same_plan() -> None:
    held = with_prompt()
    new = entering(2, [7, 8])
    rows, _ = held.apply(
        plan(1, release=[2], new_sequences=(new,), pages={2: [5]}, run=[(2, 0, 2, 1)])
    )
    assert len(rows) == 1 and held.tokens[2, :2].tolist() == [7, 8]
    assert held.num_pages[2] == 1


def test_continued_sequence_keeps_its_log() -> None:
    held = batch()
    held.apply(plan(new_sequences=(entering(0, [1, 2, 3, 4], 2, prompt_logprobs=1),)))
    assert held.first_index(np.array([0])).tolist() == [2]
    assert held.parameters[0]["prompt_logprobs"] == -1


def test_flat_positions() -> None:
    held = batch()
    first, second = entering(1, [1] * 7, computed=4), entering(0, [2] * 3)
    rows, _ = held.apply(
        plan(
            new_sequences=(first, second),
            pages={1: [0, 1], 0: [2]},
            run=[(1, 4, 3, 1), (0, 0, 2, 0)],
        )
    )
    row, position = rows.flat()
    assert row.tolist() == [0, 0, 0, 1, 1]
    assert position.tolist() == [4, 5, 6, 0, 1]


def test_stop_id_ends_and_later_rows_are_skipped() -> None:
    held = with_prompt(stop_ids=(11, 12, 13))
    assert held.accept(np.array([2]), np.array([12], np.int32)).tolist() == [2]
    rows, _ = held.apply(plan(1, run=[(2, 6, 1, 1)]))
    assert len(rows) == 0
    assert len(held) == 1


def test_stop_ids_of_different_numbers() -> None:
    held = batch()
    sequences = (entering(0, [1], stop_ids=(4,)), entering(1, [1], stop_ids=(5, 6, 7)))
    held.apply(plan(new_sequences=(*sequences, entering(3, [1]))))
    slots = np.array([0, 1, 3])
    stopped = held.accept(slots, np.array([5, 7, 0], np.int32))
    assert stopped.tolist() == [1]


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
    rows, refused = held.apply(
        plan(new_sequences=(new, good), pages={0: [0], 1: [1]}, run=[(0, 0, 1, 1), (1, 0, 2, 1)])
    )
    assert rows.slots.tolist() == [1]
    assert set(refused) == {0} and "vocabulary" in refused[0]


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
    held = with_prompt()
    held.accept(np.array([2]), np.array([9], np.int32))
    with pytest.raises(PlanError):
        held.apply(bad)


def test_rows_beyond_pages_are_refused() -> None:
    with pytest.raises(PlanError, match="pages"):
        batch().apply(
            plan(new_sequences=(entering(0, [1] * 5),), pages={0: [0]}, run=[(0, 0, 5, 1)])
        )


def test_sampling_before_the_last_token_is_refused() -> None:
    with pytest.raises(PlanError, match="samples before"):
        batch().apply(
            plan(new_sequences=(entering(0, [1] * 3),), pages={0: [0]}, run=[(0, 0, 2, 1)])
        )


def test_sampling_beyond_the_longest_sequence_is_refused() -> None:
    held = batch(max_model_len=4)
    with pytest.raises(PlanError, match="longest"):
        held.apply(plan(new_sequences=(entering(0, [1] * 4),), pages={0: [0]}, run=[(0, 0, 4, 1)]))


def test_adjustments_only_for_those_who_ask() -> None:
    held = batch()
    plain, penalised = entering(0, [1, 2]), entering(1, [3, 4, 5], 2, presence_penalty=1.0)
    biased = entering(2, [1], logit_bias={4: 2.0, 5: -1.0})
    patient = entering(3, [1], stop_ids=(8, 9), min_tokens=1)
    held.apply(plan(new_sequences=(plain, penalised, biased, patient)))
    nothing = held.adjustments(np.array([0]))
    assert (nothing.bias, nothing.forbidden, nothing.history) == (None, None, None)
    some = held.adjustments(np.array([3, 1, 2]))
    assert some.bias is not None and some.forbidden is not None and some.history is not None
    assert list(zip(some.bias.rows, some.bias.ids, some.bias.values, strict=True)) == [
        (2, 4, 2.0),
        (2, 5, -1.0),
    ]
    assert list(zip(some.forbidden.rows, some.forbidden.ids, strict=True)) == [(0, 8), (0, 9)]
    assert some.history.rows.tolist() == [1]
    assert some.history.tokens.tolist() == [[3, 4, 5]]
    assert some.history.sampled.tolist() == [[0, 0, 1]]
    held.accept(np.array([3]), np.array([1], np.int32))
    assert held.adjustments(np.array([3])).forbidden is None


def with_window(window: int) -> InputBatch:
    """Slot 1 has entered with 13 tokens on four pages, and has run them all."""
    held = batch(windows=(window,))
    first = entering(1, list(range(1, 14)))
    rows, _ = held.apply(plan(new_sequences=(first,), pages={1: [5, 3, 7, 2]}, run=[(1, 0, 13, 1)]))
    held.advance(rows)
    return held


def dropping(*numbers: int, counts: tuple[int, ...] = ()) -> Plan:
    return plan(1, drop_rows=pack(numbers, "I"), drop_counts=pack(counts, "I"))


def test_the_first_page_that_is_left_stands_for_those_before() -> None:
    held = with_window(5)
    held.apply(dropping(1, counts=(2,)))
    assert held.pages[1, :4].tolist() == [7, 7, 7, 2] and held.num_pages[1] == 4
    held.accept(np.array([1]), np.array([9], np.int32))
    rows, _ = held.apply(plan(2, pages={1: []}, run=[(1, 13, 1, 1)]))
    assert len(rows) == 1


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
        with_window(window).apply(bad)


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
    rows, _ = held.apply(given)
    held.advance(rows)
    return held


def test_each_group_has_a_table_of_its_own() -> None:
    held = grouped()
    assert held.tables[:, 1, :4].tolist() == [[5, 3, 7, 2], [0, 0, 4, 6]]
    assert held.num_pages[1] == 4
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
    held.apply(more)
    assert held.tables[1, 1, :5].tolist() == [4, 4, 4, 6, 9]
    assert held.num_pages[1] == 5, "the group that has least counts"


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
        grouped().apply(plan(1, **(rows | columns)))
