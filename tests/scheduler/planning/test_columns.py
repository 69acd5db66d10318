"""Pages to append, as the columns of a plan."""

from __future__ import annotations

from baton_scheduler.planning.columns import NewPages


def test_pages_are_columns_by_slot_and_group() -> None:
    pages = NewPages([], [], [], [])
    pages.add(3, [[7, 8], [], [9]])
    pages.add_each([1, 2], [4, 5])
    assert pages == NewPages([3, 3, 1, 2], [0, 2, 0, 0], [2, 1, 1, 1], [7, 8, 9, 4, 5])
