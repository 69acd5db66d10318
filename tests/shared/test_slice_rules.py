"""Slices of images."""

from __future__ import annotations

import pytest

from baton.slice_rules import SliceRules

RULES = SliceRules(scale=28, most=9, patch=7)


@pytest.mark.parametrize(
    ("size", "grid", "parts"),
    [
        ((10, 10), None, [(4, 4)]),
        ((28, 28), None, [(4, 4)]),
        ((30, 60), (1, 2), [(3, 5), (4, 4), (4, 4)]),
        ((60, 56), (2, 2), [(4, 4)] * 5),
        ((900, 300), (4, 2), [(7, 2), *[(5, 3)] * 8]),
    ],
)
def test_grids_and_parts(
    size: tuple[int, int], grid: tuple[int, int] | None, parts: list[tuple[int, int]]
) -> None:
    assert RULES.grid(size) == grid
    assert RULES.parts(size) == parts
