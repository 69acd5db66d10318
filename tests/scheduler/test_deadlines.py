"""Deadlines, also with reused handles."""

from __future__ import annotations

import pytest

from baton.protocol import Sampling, Submit
from baton.protocol.token_columns import pack
from baton_scheduler.deadlines import Deadlines
from baton_scheduler.queueing.queue import fcfs
from baton_scheduler.sequence import Sequence, sequence
from tests.support.scheduler_world import World


def arrive(live: dict[tuple[str, int], Sequence], handle: int, arrival: int) -> Sequence:
    submit = Submit(handle, "r", pack([1]), Sampling(4))
    new = live["g", handle] = sequence("g", submit, "", arrival, 0.0, fcfs)
    return new


def test_they_come_by_time_and_among_equals_by_arrival() -> None:
    live: dict[tuple[str, int], Sequence] = {}
    deadlines = Deadlines(live)
    for handle, when in ((1, 3.0), (2, 1.0), (3, 1.0)):
        deadlines.add(arrive(live, handle, handle), when)
    assert live["g", 1].deadline == 3.0
    assert [one.handle for one in deadlines.pop_expired(2.0)] == [2, 3]
    assert [one.handle for one in deadlines.pop_expired(2.9)] == []
    assert [one.handle for one in deadlines.pop_expired(3.0)] == [1]


def test_the_deadline_of_one_that_ended_is_not_that_of_the_next_of_its_handle() -> None:
    live: dict[tuple[str, int], Sequence] = {}
    deadlines = Deadlines(live)
    deadlines.add(arrive(live, 1, 1), 1.0)
    arrive(live, 1, 2)
    assert list(deadlines.pop_expired(5.0)) == [] and len(deadlines) == 0


def test_one_that_ends_while_others_are_looked_at_is_left_out() -> None:
    live: dict[tuple[str, int], Sequence] = {}
    deadlines = Deadlines(live)
    for handle in (1, 2):
        deadlines.add(arrive(live, handle, handle), 1.0)
    due = deadlines.pop_expired(1.0)
    assert next(due).handle == 1
    del live["g", 2]
    assert list(due) == []


def test_deadlines_of_the_ended_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton_scheduler.deadlines._SPARE", 4)
    world = World()
    world.join("w")
    for number in range(50):
        world.submit([number], Sampling(1), deadline_ms=10**7)
        world.finish()
    assert len(world.state.deadlines) < 10
