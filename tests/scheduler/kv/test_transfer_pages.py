"""Pages that transfers hold."""

from __future__ import annotations

from baton_scheduler.kv.transfer_pages import TransferPages
from tests.support.scheduler.arrivals import arrive
from tests.support.scheduler.kv_managers import confirm, hold, made


def test_what_is_lent_stays_when_its_owner_lets_go() -> None:
    keys = made()
    transfer_pages, slot = TransferPages(keys), hold(keys, arrive(10), 3)
    (table,) = transfer_pages.pin(7, slot, 6)
    assert table.pages == keys.batch.pages[slot][0][:2] == transfer_pages[7]
    _, pages = keys.batch.remove(slot)
    keys.pool.give(pages)
    assert keys.pool.num_held == 2 and sorted(transfer_pages) == sorted(table.pages)
    transfer_pages.release(7)
    assert keys.pool.num_held == 0 and not transfer_pages.numbers


def test_a_target_is_prepared_behind_what_it_knows() -> None:
    keys = made()
    slot = hold(keys, arrive(10), 3)
    confirm(keys, slot, 4)
    transfer_pages = TransferPages(keys)
    (table,) = transfer_pages.prepare(1, arrive(10), 10)
    assert table.pages[0] == keys.batch.pages[slot][0][0] and len(table.pages) == 3
    assert keys.pool.references(table.pages[0]) == 2


def test_what_was_pulled_is_found_by_the_same_beginning() -> None:
    keys = made()
    transfer_pages, one = TransferPages(keys), arrive(11)
    tables = transfer_pages.prepare(1, one, 10)
    assert keys.num_cached_tokens(arrive(11)) == 0
    transfer_pages.adopt(one, tables, 0, 10)
    transfer_pages.release(1)
    assert keys.num_cached_tokens(arrive(11)) == 8 and keys.pool.num_cached == 3
    chain = one.chain(4)
    page, common = keys.pool.index.fork(chain.at(1), chain.content(8, 11))
    assert (page, common) == (tables[0].pages[2], 2)


def test_of_a_window_only_what_is_seen_is_held() -> None:
    keys = made((0, 5))
    transfer_pages = TransferPages(keys)
    full, seen = transfer_pages.prepare(1, arrive(20), 17)
    assert (full.first, len(full.pages)) == (0, 5)
    assert (seen.first, len(seen.pages)) == (3, 2)
