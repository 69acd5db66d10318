"""The scheduler's phases split the time under "engine"."""

from __future__ import annotations

import pytest

from baton.protocol import PhaseTimes
from baton_gateway.observability.latency_causes import SERVICES, lifetime, split_engine

TIMES = PhaseTimes(queued=0.5, prefill=1.0, decode=2.0)


@pytest.mark.parametrize("engine", [0.0, 1.0, 3.5, 5.0])
def test_the_phases_and_transport_fill_the_time(engine: float) -> None:
    found = split_engine(TIMES, engine)
    assert sum(found.values()) == pytest.approx(engine)
    assert min(found.values()) >= 0.0 and found.keys() <= SERVICES.keys()


def test_the_end_is_shortened_first() -> None:
    assert split_engine(TIMES, 2.0) == {
        "queue": 0.5,
        "prefill": 1.0,
        "decode": 0.5,
        "transport": 0.0,
    }


def test_a_lifetime_is_the_sum_of_the_phases() -> None:
    assert lifetime(TIMES) == 3.5
