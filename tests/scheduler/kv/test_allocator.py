"""Initial pages of a sequence: cached, host, copied and new ones."""

from __future__ import annotations

import pytest

from baton_scheduler.block_hashes import group_key
from baton_scheduler.kv.allocator import Allocator
from baton_scheduler.kv.host_cache import HostCache
from baton_scheduler.kv.kv_manager import KVManager
from tests.support.scheduler.arrivals import arrive
from tests.support.scheduler.kv_managers import confirm, hold, made


def starts(keys: KVManager, *, worth: bool = True) -> Allocator:
    return Allocator(keys, lambda pages, blocks: worth)


def test_without_anything_known_all_pages_are_its_own() -> None:
    keys = made()
    slot, hit = starts(keys).place(arrive(10), 1, 100)
    assert (slot, hit, len(keys.batch.pages[slot][0])) == (0, 0, 3)
    assert keys.batch.capacity[slot] == 12


def test_known_pages_are_shared_and_a_page_that_begins_alike_is_copied() -> None:
    keys = made()
    first = hold(keys, arrive(12), 3)
    confirm(keys, first, 10)
    keys.keep_tail(first)
    here = starts(keys)
    slot, hit = here.place(arrive(12), 1, 100)
    mine, others = keys.batch.pages[slot][0], keys.batch.pages[first][0]
    assert hit == 10 and mine[:2] == others[:2] and mine[2] != others[2]
    assert keys.pool.references(others[2]) == 2, "held until the copy is planned"
    assert here.copies([slot]) == ([others[2]], [mine[2]])
    assert keys.pool.references(others[2]) == 1 and here.copies([slot]) == ([], [])


def test_without_a_page_to_spare_nothing_is_copied() -> None:
    keys = made(num_pages=4)
    first = hold(keys, arrive(12), 3)
    confirm(keys, first, 10)
    keys.keep_tail(first)
    _, pages = keys.batch.remove(first)
    keys.pool.give(pages)
    other = keys.take([1])
    assert keys.pool.num_free == 3
    slot, hit = starts(keys).place(arrive(12), 1, 100)
    assert hit == 8 and slot not in keys.batch.sources
    keys.pool.give(other[0])


@pytest.mark.parametrize("worth", [True, False])
def test_host_pages_come_back_where_that_is_worth_it(worth: bool) -> None:
    keys = made()
    keys.pool.host = HostCache(4)
    one = arrive(10)
    for block in range(2):
        keys.pool.host.keep(30 + block, group_key(one.chain(4).at(block), 0))
    keys.pool.host.outgoing()
    here = starts(keys, worth=worth)
    slot, hit = here.place(one, 1, 100)
    assert hit == (8 if worth else 0)
    mine = keys.batch.pages[slot][0]
    assert here.swaps_for([slot]) == ([], [0, mine[0], 1, mine[1]] if worth else [])
    keys.pool.host.check()


def test_what_is_cancelled_holds_nothing() -> None:
    keys = made()
    keys.pool.host = HostCache(2)
    first = hold(keys, arrive(12), 3)
    confirm(keys, first, 7)
    keys.keep_tail(first)
    here = starts(keys)
    slot, hit = here.place(arrive(12), 1, 100)
    assert hit == 7 and keys.batch.sources[slot]
    here.cancel(slot)
    assert slot not in keys.batch.sources
    assert keys.pool.references(keys.batch.pages[first][0][1]) == 1
    assert keys.pool.host.reset() == 0


def test_a_window_gets_its_pages_as_the_prompt_is_computed() -> None:
    keys = made((0, 5), num_pages=200)
    slot, _ = starts(keys).place(arrive(400), 1, 500)
    full, window = keys.batch.pages[slot]
    assert len(full) == 100 and len(window) == keys.groups.most(1)
