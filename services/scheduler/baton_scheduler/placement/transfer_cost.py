"""Cost model of KV transfers between workers, fitted to earlier transfers."""

from __future__ import annotations

from collections.abc import Iterator

from baton_scheduler.workers.cost_model import LinearCostModel

_NOMINAL = (0.001, 1e-9)
"""Seconds per transfer and per byte before any measurement: about 1 GB/s."""


class TransferCost:
    """Cost model per pair (source, target)."""

    def __init__(self) -> None:
        self._costs: dict[tuple[str, str], LinearCostModel] = {}
        self._overall = LinearCostModel()

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._costs)

    def add(self, source: str, target: str, num_bytes: int, seconds: float) -> None:
        """Add a transfer of `num_bytes` bytes that took `seconds`."""
        if num_bytes > 0:
            self._costs.setdefault((source, target), LinearCostModel()).add(num_bytes, seconds)
            self._overall.add(num_bytes, seconds)

    def seconds(self, source: str, target: str, num_bytes: float) -> float:
        """Estimated seconds of a transfer. A pair without measurements is taken as average; 0 on
        one worker."""
        if source == target or num_bytes <= 0:
            return 0.0
        cost = self._costs.get((source, target), self._overall)
        base, slope = cost.line if cost.measured else _NOMINAL
        return base + slope * num_bytes

    def rate(self, target: str) -> float:
        """Bytes per second towards a worker, the mean over its sources; 0 without any."""
        rates = [cost.rate for (_, to), cost in self._costs.items() if to == target]
        return sum(rates) / len(rates) if rates else 0.0

    def forget(self, name: str) -> None:
        """Drop a worker that is gone; its successor of the same name may be on another host."""
        self._costs = {pair: cost for pair, cost in self._costs.items() if name not in pair}

    def layout(self) -> bytes:
        """All measurements as bytes, for the state's digest."""
        lines = [(pair, cost.line) for pair, cost in self._costs.items()]
        return repr((lines, self._overall.line)).encode()
