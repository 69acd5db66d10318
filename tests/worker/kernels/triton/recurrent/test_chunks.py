"""Which rows of a step are scanned in chunks."""

from __future__ import annotations

import torch


def test_the_length_of_a_row_decides_and_with_exact_all_are_walked() -> None:
    from baton_worker.kernels.triton.recurrent.chunks import EVERY, launches, least

    def kinds(num_tokens: int, num_rows: int, size: int = 16, *, exact: bool = False) -> list[bool]:
        made = launches(num_tokens, num_rows, size, exact=exact)
        assert [each.at_most for each in made if not each.chunked] in (
            [],
            [least(size) - 1] if any(each.chunked for each in made) else [EVERY],
        )
        return [each.chunked for each in made]

    assert least(16) == 32 and least(64) == 64
    assert kinds(0, 0) == [] and kinds(64, 64) == [False]
    assert kinds(31, 1) == [False] and kinds(32, 1) == [True] and kinds(32, 1, 64) == [False]
    assert kinds(31, 7) == [False] and kinds(32, 7) == [False, True]
    assert kinds(4096, 7, exact=True) == [False]


def test_rows_in_chunks_have_room_for_their_pages() -> None:
    """However many tokens there are before them, and wherever in a page they begin."""
    from baton_worker.kernels.triton.recurrent.chunks import least, rooms

    for size in (1, 3, 16, 24, 64, 256):
        for before in range(0, 700, 7):
            for count in range(least(size), 3 * size + 40):
                pages = (count - 1) // size + 2
                # One more than ends before it, see `rooms`.
                assert rooms(before, size) - 1 + pages <= rooms(before + count, size) - 1


def test_chunks_are_parts_of_pages() -> None:
    from baton_worker.kernels.triton.recurrent.chunks import form

    sizes = {1: 16, 16: 16, 24: 32, 64: 64, 100: 64, 256: 64}
    for size, tokens in sizes.items():
        found = form(torch.empty(1, size, 1, 1, 1, dtype=torch.bfloat16))
        assert found == {"TOKENS": tokens, "NARROW": True, "PRECISION": "ieee"}
    assert form(torch.empty(1, 64, 1, 1, 1))["PRECISION"] == "tf32x3"
