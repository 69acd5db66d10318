"""The page pool loses and duplicates no page, and evicts none in use."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_scheduler.kv.page_pool import PagePool

STEPS = st.lists(st.tuples(st.sampled_from("tsgnr"), st.integers(0, 10)), max_size=80)


@pytest.mark.row("F12.01", "F12.04")
@given(st.integers(0, 40), STEPS)
def test_free_held_and_cached_are_always_all(total: int, steps: list[tuple[str, int]]) -> None:
    pool, owners, names = PagePool(total), [], 0
    for action, number in steps:
        if action == "t" and number <= pool.num_free:
            owners.append(pool.take(number))
        elif action == "s" and owners:
            shared = owners[number % len(owners)]
            pool.share(shared)
            owners.append(list(shared))
        elif action == "g" and owners:
            pool.give(owners.pop(number % len(owners)))
        elif action == "n" and owners:
            for page in owners[number % len(owners)]:
                if page not in pool.index:
                    names += 1
                    pool.add_hash(page, b"%d" % names)
        elif action == "r":
            pool.reset()
        pool.check()
        held = [page for pages in owners for page in pages]
        assert pool.num_held == len(set(held)) == total - pool.num_free
        assert all(pool.references(page) == held.count(page) for page in range(total))


def test_a_taken_page_has_one_owner() -> None:
    pool = PagePool(4)
    first, second = pool.take(2), pool.take(2)
    assert sorted(first + second) == [0, 1, 2, 3]


def test_a_shared_page_stays_until_its_last_owner_leaves() -> None:
    pool = PagePool(2)
    pages = pool.take(1)
    pool.share(pages)
    pool.give(pages)
    assert pool.num_free == 1
    pool.give(pages)
    assert pool.num_free == 2


def test_giving_back_twice_is_a_fault() -> None:
    pool = PagePool(2)
    pages = pool.take(1)
    pool.give(pages)
    with pytest.raises(AssertionError, match="twice"):
        pool.give(pages)


def test_a_free_page_cannot_be_shared() -> None:
    with pytest.raises(AssertionError, match="free page"):
        PagePool(2).share([0])


def test_more_pages_than_are_free_cannot_be_taken() -> None:
    with pytest.raises(AssertionError, match="more pages"):
        PagePool(2).take(3)


def test_the_layout_tells_two_pools_apart() -> None:
    one, two = PagePool(3), PagePool(3)
    assert one.layout() == two.layout()
    one.take(1)
    assert one.layout() != two.layout()


def one_by_one(pool: PagePool, count: int) -> list[int]:
    return [pool.take(1)[0] for _ in range(count)]


@pytest.mark.parametrize("count", [0, 1, 3, 5])
def test_pages_for_several_owners_are_those_of_single_calls(count: int) -> None:
    """Free ones first, then cached ones that make room."""
    pools = [PagePool(6), PagePool(6)]
    for pool in pools:
        named(pool, b"1", b"2", b"3")
        pool.take(1)
    assert pools[0].take_each(count) == one_by_one(pools[1], count)
    assert pools[0].layout() == pools[1].layout()
    pools[0].check()
    with pytest.raises(AssertionError, match="more pages"):
        pools[0].take_each(6)


def test_a_full_page_has_a_name_and_what_it_begins_with_unless_another_has_them() -> None:
    pools = [PagePool(2), PagePool(2)]
    for number, pool in enumerate(pools):
        for page in pool.take(2):
            if number:
                pool.fill(page, b"name", b"before", b"1234")
            elif pool.add_hash(page, b"name"):
                pool.begin(page, b"before", b"1234")
        pool.check()
    assert pools[0].layout() == pools[1].layout()
    free = PagePool(1)
    with pytest.raises(AssertionError, match="held page"):
        free.fill(0, b"name", b"before", b"1234")


def named(pool: PagePool, *names: bytes) -> list[int]:
    """Cached pages of these names, given back in this order."""
    pages = pool.take(len(names))
    for page, name in zip(pages, names, strict=True):
        pool.add_hash(page, name)
        pool.give([page])
    return pages


@pytest.mark.row("F12.04")
def test_the_least_recently_used_goes_first_and_only_when_nothing_is_free() -> None:
    pool = PagePool(5)
    old, used, new = named(pool, b"old", b"used", b"new")
    pool.share([used])
    pool.give([used])
    assert not {old, used, new} & set(pool.take(2))
    assert pool.take(2) == [old, new] and used in pool.index and old not in pool.index
    assert (pool.num_cached, pool.num_free, pool.num_held) == (1, 1, 4)


@pytest.mark.row("F12.04")
def test_a_page_in_use_is_never_evicted() -> None:
    pool = PagePool(3)
    first, second = named(pool, b"1", b"2")
    pool.share([first])
    assert pool.num_free == 2
    assert first not in pool.take(2) and first in pool.index and second not in pool.index


def test_of_a_chain_the_end_is_evicted_first() -> None:
    pool = PagePool(3)
    pages = pool.take(3)
    for page in pages:
        pool.add_hash(page, b"%d" % page)
    pool.give(pages)
    assert [pool.take(1)[0] for _ in range(3)] == pages[::-1]


@pytest.mark.row("F12.12")
def test_a_reset_frees_what_nobody_uses() -> None:
    pool = PagePool(4)
    kept, gone = named(pool, b"kept", b"gone")
    pool.share([kept])
    assert pool.reset() == 1
    assert kept in pool.index and gone not in pool.index and pool.num_cached == 0


def test_a_disowned_page_is_not_found_and_not_kept() -> None:
    pool = PagePool(2)
    (page,) = pages = pool.take(1)
    pool.add_hash(page, b"bad")
    pool.uncache(pages)
    pool.give(pages)
    assert (len(pool.index), pool.num_cached) == (0, 0)


def test_pages_that_hold_something_from_before_are_cached() -> None:
    pool = PagePool(4)
    pool.adopt({2: b"a", 0: b"b"})
    pool.check()
    assert (pool.num_cached, pool.num_free) == (2, 4)
    assert sorted(pool.take(3)) == [1, 2, 3]
    assert pool.index.hash_of(2) is None and pool.index.hash_of(0) == b"b", (
        "the longest known goes first"
    )


@pytest.mark.parametrize("page", [4, 1])
def test_a_page_that_cannot_hold_it(page: int) -> None:
    pool = PagePool(4)
    pool.take(4)
    with pytest.raises(ValueError, match="is not free"):
        pool.adopt({page: b"a"})
