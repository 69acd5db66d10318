"""A rate from counts and given times."""

from __future__ import annotations

from baton_scheduler.meter import Meter


def test_the_rate_follows_the_counts_and_forgets() -> None:
    meter = Meter()
    meter.tick(10.0)
    meter.add(100)
    meter.tick(10.5)
    assert meter.rate == 0.0
    meter.tick(12.0)
    assert meter.rate == 50.0
    meter.add(100)
    meter.tick(13.0)
    assert meter.rate == 75.0
    for second in range(14, 40):
        meter.tick(float(second))
    assert meter.rate == 0.0
