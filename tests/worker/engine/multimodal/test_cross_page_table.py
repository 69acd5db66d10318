"""Pages of encoder states: who has them, who loses them."""

from __future__ import annotations

from baton_worker.engine.multimodal.cross_page_table import CrossPageTable

A, B, C = ((name,) for name in (b"a", b"b", b"c"))


def test_pages_are_kept_up_to_a_bound_and_pinned_ones_beyond_it() -> None:
    table = CrossPageTable(4, 10, 65)  # Six pages of ten bytes.
    first = table.assign(A, 9, set())
    assert len(first.pages) == 3 and first.num_states == 9 and table.num_pages == 3
    second = table.assign(B, 12, {b"a"})
    assert table.num_pages == 6 and not {*first.pages} & {*second.pages}
    assert table.get(A) == first and A in table
    third = table.assign(C, 1, set())
    assert B not in table and A in table, "the one that was used last stays"
    assert table.num_pages == 6 and {*third.pages} < {*second.pages}
    more = table.assign((b"b", b"c"), 21, {b"a", b"c"})
    assert len(more.pages) == 6 and table.num_pages == 10 and C in table
    table.drop([A, B])
    assert A not in table and {*table.assign(B, 12, set()).pages} == {*first.pages}


def test_without_room_only_what_runs_has_pages() -> None:
    table = CrossPageTable(4, 10, 0)
    assert table.assign(A, 4, {b"a"}) and table.assign(B, 4, {b"a", b"b"})
    assert table.num_pages == 2 and table.assign(C, 4, {b"b", b"c"}) and A not in table
    assert table.num_pages == 2
