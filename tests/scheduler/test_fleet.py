"""Who takes a sequence."""

from __future__ import annotations

import pytest

from baton.protocol import Sampling, Submit
from baton.tokens import pack
from baton_scheduler.fleet import Fleet
from baton_scheduler.queue import fcfs
from baton_scheduler.request import Sequence, sequence
from tests.fakes.worker import worker_info


def arrive(length: int = 4) -> Sequence:
    submit = Submit(1, "r", pack(range(length)), Sampling(4))
    return sequence("g", submit, "", 1, 0.0, fcfs)


def fleet(**sizes: int) -> Fleet:
    """Workers by name with that many pages of 4 tokens."""
    made = Fleet()
    for name, pages in sizes.items():
        made.join(name, 1, worker_info(num_pages=pages, page_size=4, max_rows=4), 64)
    return made


def test_the_least_loaded_takes_it() -> None:
    made = fleet(a=8, b=8)
    first = made.pick(arrive())
    assert first is not None and first.name == "a"
    first.place(arrive(), 0)
    second = made.pick(arrive())
    assert second is not None and second.name == "b"


def test_only_one_in_which_it_fits_takes_it() -> None:
    made = fleet(a=2, b=8)
    picked = made.pick(arrive(12))
    assert picked is not None and picked.name == "b"
    assert not made.fits(arrive(32)) and made.fits(arrive(31))
    assert made.max_length == 8


def test_a_draining_worker_takes_nothing() -> None:
    made = fleet(a=8)
    worker = made.get("a")
    assert worker is not None
    worker.draining = True
    assert made.pick(arrive()) is None and not made.open


def test_one_page_stays_free_for_every_running_sequence() -> None:
    made = fleet(a=4)
    worker = made.get("a")
    assert worker is not None
    worker.place(arrive(8), 0)
    assert worker.has_room(arrive(4)) and not worker.has_room(arrive(5))


def test_no_more_rows_than_tokens_in_a_step() -> None:
    made = Fleet()
    made.join("a", 1, worker_info(max_rows=32), 3)
    worker = made.get("a")
    assert worker is not None and worker.max_running == 3


def test_an_epoch_that_had_work_is_not_granted_twice() -> None:
    made = fleet(a=8)
    worker = made.get("a")
    assert worker is not None
    made.leave("a")
    assert not made.refuses("a", 1)
    made.join("a", 1, worker.info, 64)
    again = made.get("a")
    assert again is not None
    again.next_step = 2
    made.leave("a")
    assert made.refuses("a", 1) and not made.refuses("a", 2)
    with pytest.raises(AssertionError):
        made.join("a", 1, worker.info, 64)


def test_a_prefill_worker_gives_no_page_back_before_its_sequence_leaves() -> None:
    made = Fleet()
    for name, role in (("p", "prefill"), ("d", "decode")):
        made.join(name, 1, worker_info(role=role, window=7), 64)
    assert [worker.window for worker in made] == [0, 7]
