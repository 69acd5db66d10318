"""The page pool: nothing is lost, nothing is doubled."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_scheduler.pages import PagePool


@pytest.mark.row("F12.01")
@given(st.integers(0, 40), st.lists(st.tuples(st.sampled_from("tsg"), st.integers(0, 10))))
def test_free_and_held_are_always_all(total: int, steps: list[tuple[str, int]]) -> None:
    pool, owners = PagePool(total), []
    for action, number in steps:
        if action == "t" and number <= pool.num_free:
            owners.append(pool.take(number))
        elif action == "s" and owners:
            shared = owners[number % len(owners)]
            pool.share(shared)
            owners.append(list(shared))
        elif action == "g" and owners:
            pool.give(owners.pop(number % len(owners)))
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
