"""Known workers, and accepted and refused epochs."""

from __future__ import annotations

import pytest

from baton_scheduler.workers.fleet import Fleet
from tests.fakes.hash_worker import worker_info
from tests.support.scheduler.arrivals import arrive


def fleet(**sizes: int) -> Fleet:
    """Workers by name with that many pages of 4 tokens."""
    made = Fleet()
    for name, pages in sizes.items():
        made.join(name, 1, worker_info(num_pages=pages, page_size=4, max_num_seqs=4), 64)
    return made


def test_only_where_it_fits_it_fits() -> None:
    made = fleet(a=2, b=8)
    assert [worker.name for worker in made if worker.fits(arrive(12))] == ["b"]
    assert not made.fits(arrive(32)) and made.fits(arrive(31))
    assert made.max_model_len == 8


def test_it_is_open_while_somebody_takes_something_new() -> None:
    made = fleet(a=8, b=8)
    for name, still in (("a", True), ("b", False)):
        worker = made.get(name)
        assert worker is not None
        worker.draining = True
        assert made.open is still


def test_an_epoch_that_had_work_is_not_granted_twice() -> None:
    made = fleet(a=8)
    worker = made.get("a")
    assert worker is not None
    made.leave("a")
    assert not made.refuses("a", 1)
    made.join("a", 1, worker.info, 64)
    again = made.get("a")
    assert again is not None
    again.flights.next_step = 2
    made.leave("a")
    assert made.refuses("a", 1) and not made.refuses("a", 2)
    with pytest.raises(AssertionError):
        made.join("a", 1, worker.info, 64)
