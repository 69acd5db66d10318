"""How long keys take from one worker to another: by what earlier transfers took."""

from __future__ import annotations

from collections.abc import Iterator

from baton_scheduler.workers.cost_model import LinearCostModel

_NOMINAL = (0.001, 1e-9)
"""Seconds of a transfer, and more per byte, before any was measured: about 1 GB/s."""


class TransferCost:
    """Pairs (source, target) and the pace of the bytes between them."""

    def __init__(self) -> None:
        self._paces: dict[tuple[str, str], LinearCostModel] = {}
        self._all = LinearCostModel()

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._paces)

    def add(self, source: str, target: str, num_bytes: int, seconds: float) -> None:
        """A transfer of so many bytes has taken so long."""
        if num_bytes > 0:
            self._paces.setdefault((source, target), LinearCostModel()).add(num_bytes, seconds)
            self._all.add(num_bytes, seconds)

    def seconds(self, source: str, target: str, num_bytes: float) -> float:
        """How long a transfer will take. A pair without one is taken for an average pair; on the
        same worker nothing moves."""
        if source == target or num_bytes <= 0:
            return 0.0
        pace = self._paces.get((source, target), self._all)
        base, slope = pace.line if pace.known else _NOMINAL
        return base + slope * num_bytes

    def rate(self, target: str) -> float:
        """Bytes per second that come to a worker, the mean of its pairs; 0 without any."""
        rates = [pace.rate for (_, to), pace in self._paces.items() if to == target]
        return sum(rates) / len(rates) if rates else 0.0

    def forget(self, name: str) -> None:
        """A worker is gone: the next one of its name may be elsewhere."""
        self._paces = {pair: pace for pair, pace in self._paces.items() if name not in pair}

    def layout(self) -> bytes:
        """Everything as bytes, for the state's digest."""
        lines = [(pair, pace.line) for pair, pace in self._paces.items()]
        return repr((lines, self._all.line)).encode()
