"""Lock-free instruments produce the same output as the library's own."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from baton_gateway.observability.instruments import FastCounter, FastHistogram
from baton_gateway.observability.metrics import Metrics

BOUNDS = (0.001, 0.0025, 5.0, 10.0)
assert Metrics  # Without it, the library would add a series per metric.


def test_a_counter_is_told_like_the_library_s() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    total, counter = (
        FastCounter("x_tokens", "Some.", ours),
        Counter("x_tokens", "Some.", registry=theirs),
    )
    assert generate_latest(ours) == generate_latest(theirs)
    total.value += 3
    counter.inc(3)
    assert generate_latest(ours) == generate_latest(theirs)


def test_a_histogram_is_told_like_the_library_s() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    spread = FastHistogram("x_seconds", "Some.", BOUNDS, ours)
    histogram = Histogram("x_seconds", "Some.", buckets=BOUNDS, registry=theirs)
    assert generate_latest(ours) == generate_latest(theirs)
    for value in (0.0, 0.001, 0.5, 5.0, 5.0001, 11.0):
        spread.observe(value)
        histogram.observe(value)
    assert generate_latest(ours) == generate_latest(theirs)
