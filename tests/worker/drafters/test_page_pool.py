"""Pages of a drafter: held, shared, cached, given away."""

from __future__ import annotations

import pytest

from baton_worker.drafters.page_pool import PagePool


@pytest.mark.row("F08.01")
def test_a_named_page_is_found_until_it_is_needed() -> None:
    pool = PagePool(3)
    one = pool.take(2)
    assert one == [0, 1] and pool.take(2) is None and pool.num_available == 1
    pool.name(0, b"a")
    pool.name(1, b"a")  # Another one has run the same tokens.
    assert pool.share(b"a") == 0 and pool.share(b"b") is None
    pool.give_back(one)
    assert pool.num_available == 2, "page 0 has another holder"
    pool.give_back([0])
    assert pool.num_available == 3 and pool.share(b"a") == 0
    pool.give_back([0])
    assert sorted(pool.take(3) or ()) == [0, 1, 2]
    assert pool.share(b"a") is None, "it was given away"


@pytest.mark.row("F08.01")
def test_the_least_recently_used_prefix_goes_first_and_a_broken_one_at_once() -> None:
    pool = PagePool(3)
    pages = pool.take(3) or []
    for page, prefix in zip(pages, (b"a", b"b", b"c"), strict=True):
        pool.name(page, prefix)
    pool.give_back(pages)
    assert pool.share(b"a") == pages[0]
    pool.give_back([pages[0]])
    assert pool.take(1) == [pages[1]] and pool.share(b"b") is None
    assert pool.share(b"c") == pages[2]
    pool.give_back([pages[2]], broken=True)
    assert pool.share(b"c") is None and pool.share(b"a") == pages[0]
