"""Worker capacity, placement and eviction."""

from __future__ import annotations

import pytest
from msgspec import structs

from baton.protocol import AdapterInfo, ExpertBalance, Result
from baton_scheduler.planning.planner import plan
from baton_scheduler.workers.worker import Worker
from tests.fakes.hash_worker import worker_info
from tests.support.scheduler.arrivals import (
    arrive,
)


def worker(
    num_pages: int = 8, most: int = 64, *, host_pages: int = 0, max_num_seqs: int = 4
) -> Worker:
    """With pages of 4 tokens."""
    info = worker_info(
        num_pages=num_pages, page_size=4, max_num_seqs=max_num_seqs, host_pages=host_pages
    )
    return Worker("w", 1, info, most, caching=True)


def test_one_page_stays_free_for_every_running_sequence() -> None:
    made = worker(4)
    made.place(arrive(8), 0)
    assert made.has_room(arrive(4, 2)) and not made.has_room(arrive(5, 2))
    made.check()


def test_no_more_rows_than_tokens_in_a_step() -> None:
    assert worker(most=3, max_num_seqs=32).max_running == 3


def test_a_draining_worker_takes_nothing() -> None:
    made = worker()
    assert made.has_room(arrive())
    made.draining = True
    assert not made.has_room(arrive())


def test_only_the_last_in_order_yield_and_no_more_of_them_than_needed() -> None:
    made = worker(9, max_num_seqs=8)
    for number in (1, 2, 3):
        made.place(arrive(8, number), 0)
    slots = made.yielding(arrive(8, 9), lambda new, old: True)
    assert slots == [2]
    assert made.yielding(arrive(8, 9), lambda new, old: old.arrival == 1) == []


def test_what_is_evicted_leaves_its_pages_and_is_found_again() -> None:
    made = worker()
    one = arrive(6)
    made.place(one, 0)
    plan(made, 0.0)
    made.kv.confirm(made.flights.first.rows, made.flights.first.ends)
    assert made.evict(0) is one and one.worker is None
    assert (made.pool.num_held, made.pool.num_cached) == (0, 2)
    assert made.place(arrive(6), 0) == 5, "a whole page, and one more token of the next"
    made.check()


def test_of_a_broken_sequence_nothing_is_found() -> None:
    made = worker()
    made.place(arrive(6), 0)
    plan(made, 0.0)
    made.kv.confirm(made.flights.first.rows, made.flights.first.ends)
    made.evict(0, broken=True)
    assert (made.pool.num_cached, made.kv.num_cached_tokens(arrive(6))) == (0, 0)


def test_a_withdrawn_sequence_makes_the_last_plan_wasteful() -> None:
    made = worker()
    made.place(arrive(), 0)
    made.withdraw(0)
    assert made.flights.wasteful


def test_a_plan_that_ends_early_takes_its_rows_back() -> None:
    made = worker(64)
    made.place(arrive(4, max_tokens=40), 0)
    plan(made, 0.0)
    plan(made, 0.0, 8)
    assert (len(made.flights), int(made.batch.num_scheduled[0])) == (9, 12)
    made.shorten(4)
    assert (len(made.flights), int(made.batch.num_scheduled[0]), made.flights.next_step) == (
        4,
        7,
        5,
    )


def test_host_pages_are_worth_it_until_they_were_measured_to_be_slower() -> None:
    made = worker(host_pages=4)
    assert made._worth(1, 1)
    for tokens in (4, 40, 400):
        made.step_cost.add(tokens, 0.001 * tokens)
    made.swap_cost.add(1, 0.003)
    assert made._worth(1, 1)
    for _ in range(200):
        made.swap_cost.add(1, 0.1)
    assert not made._worth(1, 1)


def test_who_passes_sequences_on_has_no_host_memory() -> None:
    made = worker(host_pages=4)
    assert made.pool.host is not None
    made.assign("prefill")
    assert made.pool.host is None and made.info.role == "prefill"
    made.assign("both")
    assert made.pool.host is None


def test_a_step_counts_and_one_that_only_released_says_nothing_about_speed() -> None:
    made = worker()
    made.place(arrive(), 0)
    plan(made, 0.0)
    result = Result(1, 1, b"", b"", b"", b"", duration_us=5000)
    balance = ExpertBalance(0.5, 3.0, 6.0, 1)
    made.note(made.flights.pop(), 1, structs.replace(result, experts=balance), 1.0)
    assert (made.steps, made.step_ms, made.last_result_time) == (1, 5.0, 1.0)
    made.evict(0)
    plan(made, 1.0)
    made.note(made.flights.pop(), 0, structs.replace(result, duration_us=90_000), 2.0)
    assert (made.steps, made.step_ms) == (2, 5.0)
    assert made.expert_balance == balance


@pytest.mark.row("F11.01")
def test_its_batch_has_no_more_adapters_than_it_has_places_for() -> None:
    names = [AdapterInfo(name, name.encode()) for name in "abc"]
    info = structs.replace(
        worker_info(page_size=4), adapters=tuple(names), max_loras=2, max_num_seqs=8
    )
    made = Worker("w", 1, info, 64, caching=True)
    assert not made.fits(arrive(adapter=b"d")) and made.fits(arrive(adapter=b"c"))
    for number, adapter in enumerate([b"a", b"", b"b", b"a"], start=1):
        assert made.has_room(arrive(number=number, adapter=adapter))
        made.place(arrive(number=number, adapter=adapter), 0)
    assert not made.has_room(arrive(adapter=b"c")) and made.has_room(arrive(adapter=b"b"))
    new = arrive(4, 9, adapter=b"c")
    assert made.yielding(new, lambda new, old: old.arrival >= 3) == [3, 2], "b leaves with slot 2"
    assert made.yielding(new, lambda new, old: old.arrival == 4) == [], "another a stays"
