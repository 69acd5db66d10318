"""Steps in flight, and where the last plan ends."""

from __future__ import annotations

import numpy as np
import pytest

from baton.errors import WireError
from baton_scheduler.workers.in_flight import InFlightStep, InFlightSteps

_NONE = np.zeros(0, np.int64)


def flight(step: int, *owners: int) -> InFlightStep:
    return InFlightStep(step, 0.0, np.array(owners or (7,)), _NONE, _NONE, _NONE, _NONE, b"", 1)


def made(*plans: int) -> InFlightSteps:
    """Plans of so many steps each."""
    flights = InFlightSteps()
    for steps in plans:
        first = flights.next_step
        flights.add(flight(first + turn) for turn in range(steps))
    return flights


def test_a_plan_is_so_many_flights_and_the_next_begins_behind() -> None:
    flights = made(1, 3)
    assert [each.step for each in flights] == [1, 2, 3, 4]
    assert (flights.first_step, flights.next_step) == (2, 5)


def test_a_step_is_in_flight_until_it_is_taken_off() -> None:
    flights = made(2)
    assert [step in flights for step in (0, 1, 2, 3)] == [False, True, True, False]
    assert flights.pop().step == 1
    assert 1 not in flights and flights.first.step == 2
    flights.pop()
    assert not flights and 2 not in flights


@pytest.mark.parametrize(
    ("plans", "severable"), [((1,), False), ((1, 1), False), ((2,), False), ((3,), True)]
)
def test_to_cut_a_plan_spares_steps_beyond_the_one_that_runs_and_the_next(
    plans: tuple[int, ...], severable: bool
) -> None:
    flights = made(*plans)
    assert flights.can_truncate is severable
    flights.truncated = True
    assert not flights.can_truncate, "once is enough"


def test_nothing_is_planned_behind_an_end_that_may_move() -> None:
    flights = made(8)
    assert flights.max_in_flight(4) == 4
    flights.truncated = True
    assert flights.max_in_flight(4) == 2 and flights.max_in_flight(1) == 1
    flights.add([flight(9)])
    assert flights.max_in_flight(4) == 4, "a later plan has no cut"


def test_what_an_early_end_spares_comes_back_the_latest_first() -> None:
    flights = made(1, 8)
    flights.truncated = flights.wasteful = True
    assert [each.step for each in flights.end(6)] == [9, 8, 7]
    assert (flights.next_step, len(flights)) == (7, 6)
    assert not flights.truncated and not flights.wasteful


@pytest.mark.parametrize("until", [1, 10])
def test_another_plan_cannot_be_meant(until: int) -> None:
    flights = made(1, 8)
    with pytest.raises(WireError, match="cannot end"):
        flights.end(until)
    assert len(flights) == 9


def test_a_grant_runs_where_a_step_in_flight_has_it() -> None:
    flights = InFlightSteps()
    flights.add([flight(1, 5, 0)])
    assert flights.run(0, 5) and not flights.run(1, 5) and not flights.run(0, 6)
