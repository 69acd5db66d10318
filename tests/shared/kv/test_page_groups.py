"""Page counts of windowed and full attention groups."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.kv.page_groups import PageGroups

WINDOWS = st.lists(st.sampled_from([0, 1, 2, 5, 8, 13]), min_size=1, max_size=4).map(tuple)
GROUPS = st.builds(PageGroups, WINDOWS, st.integers(1, 5), st.integers(1, 20))


@given(GROUPS, st.integers(0, 100))
def test_a_block_is_let_go_when_no_token_to_come_sees_one_of_its_tokens(
    groups: PageGroups, length: int
) -> None:
    size = groups.page_size
    for group, window in enumerate(groups.windows):
        seen = [t for t in range(length + 1) if not window or t > length - window]
        assert groups.first(group, length) == min(seen) // size
        assert groups.first(group, length) <= groups.first(group, length + 1)


@given(GROUPS, st.integers(0, 100), st.integers(1, 100))
def test_a_chunk_never_needs_more_than_the_most(groups: PageGroups, length: int, more: int) -> None:
    size, total = groups.page_size, -(-(length + more) // groups.page_size)
    end = -(-(length + min(more, groups.chunk)) // size)
    ends = [groups.end(group, length, total) for group in range(len(groups))]
    assert all(end <= given <= total for given in ends)
    taken = sum(given - groups.first(group, length) for group, given in enumerate(ends))
    assert taken <= groups.num_pages(total)


@given(GROUPS, st.integers(0, 200), st.integers(1, 300))
def test_the_longest_sequence_fits_and_one_block_more_does_not(
    groups: PageGroups, num_pages: int, max_length: int
) -> None:
    longest = groups.longest(num_pages, max_length)
    blocks = -(-longest // groups.page_size)
    assert longest <= max_length and groups.num_pages(blocks) <= num_pages
    assert longest == max_length or groups.num_pages(blocks + 1) > num_pages


@pytest.mark.row("F04.11")
def test_windows_multiply_what_a_memory_holds() -> None:
    """Six groups of which five see 1024 tokens, as in Gemma 3, against all six keeping all."""
    mixed = PageGroups((0, *[1024] * 5), 16, 2048)
    whole = PageGroups((0,) * 6, 16, 2048)
    assert whole.longest(12_000, 10**6) == 32_000
    assert mixed.longest(12_000, 10**6) > 5 * whole.longest(12_000, 10**6)
    assert PageGroups((0,), 16, 2048).plain and not mixed.plain
    assert mixed.windowed == (1, 2, 3, 4, 5)
