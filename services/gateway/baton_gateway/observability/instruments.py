"""Prometheus instruments without locks, for values that change with every token.

The library's own instruments lock on every update. These are updated by one thread and converted to
the library's format on scrape.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class FastCounter(Collector):
    """A counter without labels."""

    def __init__(self, name: str, text: str, registry: CollectorRegistry) -> None:
        self._name, self._text = name, text
        self.value = 0
        """Monotonic value."""
        registry.register(self)

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Return the current value."""
        yield CounterMetricFamily(self._name, self._text, self.value)


class FastHistogram(Collector):
    """A histogram without labels."""

    def __init__(
        self, name: str, text: str, bounds: tuple[float, ...], registry: CollectorRegistry
    ) -> None:
        """`bounds`: ascending upper bounds of the buckets; one more bucket holds larger values."""
        self._name, self._text, self._bounds = name, text, bounds
        self._counts, self._sum = [0] * (len(bounds) + 1), 0.0
        registry.register(self)

    def observe(self, value: float) -> None:
        """Record a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Return the cumulative buckets."""
        names = map(floatToGoString, (*self._bounds, float("inf")))
        buckets = list(zip(names, map(float, accumulate(self._counts)), strict=True))
        yield HistogramMetricFamily(self._name, self._text, buckets, self._sum)
