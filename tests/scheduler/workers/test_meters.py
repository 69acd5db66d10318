from __future__ import annotations

import pytest

from baton_scheduler.workers.meters import LatencyMeter, RateMeter


def test_first_tokens_are_averaged() -> None:
    pulse = LatencyMeter()
    assert pulse.ttft == 0.0
    pulse.first_token(2.0)
    assert pulse.ttft == 2.0
    pulse.first_token(1.0)
    assert pulse.ttft == pytest.approx(1.9)


def test_an_interval_is_that_of_one_sequence() -> None:
    pulse = LatencyMeter()
    pulse.step_done(0.04, rows=8, tokens=0)
    assert pulse.itl == 0.0
    pulse.step_done(0.04, rows=8, tokens=8)
    assert pulse.itl == pytest.approx(0.04)
    pulse.step_done(0.04, rows=2, tokens=4)
    assert pulse.itl == pytest.approx(0.9 * 0.04 + 0.1 * 0.02)


def test_the_rate_follows_the_counts_and_forgets() -> None:
    meter = RateMeter()
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
