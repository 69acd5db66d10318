"""Marks between tiles."""

from __future__ import annotations

from baton_worker.layers.vision.marks import COLUMN, END, GRID, ROW, START, Marks, order


def test_marks_between_columns_and_rows() -> None:
    assert order((1, 1, 1)) == [START, None, GRID, END]
    expected = [START, None, GRID, None, COLUMN, None, ROW, None, COLUMN, None, END]
    assert order((1, 2, 2)) == expected
    assert Marks.num_tokens(5 * 9, (1, 2, 2)) == 45 + 6
    assert Marks.num_tokens(9, (1, 1, 1)) == 9 + 3
