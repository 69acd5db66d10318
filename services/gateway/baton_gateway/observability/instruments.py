"""Numbers for Prometheus that change with every token of every stream.

The library's own take a lock, or several, each time; these belong to one thread, and are put into
its shape when somebody asks.
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
        """It only ever grows."""
        registry.register(self)

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Its value now."""
        yield CounterMetricFamily(self._name, self._text, self.value)


class FastHistogram(Collector):
    """A histogram without labels."""

    def __init__(
        self, name: str, text: str, bounds: tuple[float, ...], registry: CollectorRegistry
    ) -> None:
        """`bounds`: the largest value of each bucket, ascending; one more holds all the rest."""
        self._name, self._text, self._bounds = name, text, bounds
        self._counts, self._sum = [0] * (len(bounds) + 1), 0.0
        registry.register(self)

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Its buckets now, each with those below it."""
        names = map(floatToGoString, (*self._bounds, float("inf")))
        buckets = list(zip(names, map(float, accumulate(self._counts)), strict=True))
        yield HistogramMetricFamily(self._name, self._text, buckets, self._sum)
