"""Pages are hashed when full and confirmed, and freed when they leave every window."""

from __future__ import annotations

import pytest

from baton_scheduler.block_table import BlockTable
from tests.support.scheduler.arrivals import arrive
from tests.support.scheduler.kv_managers import (
    confirm,
    hold,
    made,
)


@pytest.mark.parametrize("windows", [(0,), (0, 0), (0, 5), (5,)])
def test_full_pages_are_found_by_the_same_beginning_once_they_are_settled(
    windows: tuple[int, ...],
) -> None:
    keys = made(windows)
    slot = hold(keys, arrive(14), 4)
    assert keys.num_cached_tokens(arrive(14)) == 0
    confirm(keys, slot, 7)
    assert keys.num_cached_tokens(arrive(14)) == 4
    confirm(keys, slot, 13)
    assert keys.num_cached_tokens(arrive(14)) == 12
    assert keys.num_cached_tokens(arrive(14, 2)) == 0
    assert keys.batch.num_hashed_blocks[slot] == 3 and keys.batch.num_confirmed[slot] == 13


def test_names_are_those_of_the_chain_in_every_group() -> None:
    keys = made((0, 5))
    one = arrive(9)
    slot = hold(keys, one, 3)
    confirm(keys, slot, 8)
    tables = keys.cached_prefix(arrive(9))
    assert [table.pages for table in tables] == [
        keys.batch.pages[slot][0][:2],
        keys.batch.pages[slot][1][1:2],
    ], "of the window, what token 8 sees"


def test_without_a_cache_nothing_has_a_name() -> None:
    keys = made(caching=False)
    slot = hold(keys, arrive(9), 3)
    confirm(keys, slot, 8)
    keys.keep_tail(slot)
    assert keys.cached_prefix(arrive(9)) == [BlockTable(0, [])] and len(keys.pool.index) == 0


def test_the_last_page_is_found_by_what_it_begins_with() -> None:
    keys = made()
    one = arrive(10)
    slot = hold(keys, one, 3)
    confirm(keys, slot, 10)
    assert one.prompt_cached, "all of its prompt is in pages"
    chain = arrive(12).chain(4)
    page, common = keys.pool.index.fork(chain.at(1), chain.content(8, 12))
    assert (page, common) == (keys.batch.pages[slot][0][2], 2)


def test_pages_one_by_one_are_those_that_single_calls_would_give() -> None:
    one, other = made(num_pages=9), made(num_pages=9)
    for keys in (one, other):
        hold(keys, arrive(4, 1), 1)
        hold(keys, arrive(4, 2), 1)
    single = [other.grow(slot, [1])[0][0] for slot in (1, 0)]
    assert one.grow_each([1, 0]) == single
    assert one.batch.pages == other.batch.pages and one.pool.layout() == other.pool.layout()
    assert one.batch.capacity.tolist() == other.batch.capacity.tolist() == [8, 8]


def test_what_lacks_is_counted_in_every_group() -> None:
    keys = made((0, 5))
    slot = hold(keys, arrive(8), 2)
    keys.grow(slot, [2, 0])
    assert keys.lacking(slot, 5) == [1, 3]
    assert keys.batch.capacity[slot] == 8, "the least of all groups"


def test_a_window_lets_go_of_what_no_token_to_come_can_see() -> None:
    keys = made((0, 5))
    slot = hold(keys, arrive(20), 5)
    keys.batch.enter(slot)
    keys.batch.num_confirmed[slot] = 17
    keys.free_outside_window(0)
    assert [table.first for table in keys.batch.tables(slot)] == [0, 3]
    assert keys.pool.num_held == 5 + 2


def test_slack_keeps_more_of_it() -> None:
    keys = made((0, 5))
    slot = hold(keys, arrive(20), 5)
    keys.batch.enter(slot)
    keys.batch.num_confirmed[slot] = 17
    keys.free_outside_window(8)
    assert [table.first for table in keys.batch.tables(slot)] == [0, 1]
