"""When sequences end in an error if they have not ended by then."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush

from baton_scheduler.sequence import Sequence

_SPARE = 1024
"""Deadlines of sequences that have ended, beyond the number of live ones, before they go."""


class Deadlines:
    """A heap of them, by time and arrival. Those of sequences that have ended stay for a while."""

    def __init__(self, live: Mapping[tuple[str, int], Sequence]) -> None:
        self._live = live
        """Sequences by gateway and handle, as they are at any time."""
        self._heap: list[tuple[float, int, str, int]] = []
        """(when, arrival, gateway, handle)"""

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, sequence: Sequence, when: float) -> None:
        """A live sequence has until then."""
        sequence.deadline = when
        if len(self) > 2 * len(self._live) + _SPARE:
            self._heap = [entry for entry in self._heap if self._of(entry) is not None]
            heapify(self._heap)
        heappush(self._heap, (when, sequence.arrival, sequence.gateway, sequence.handle))

    def due(self, now: float) -> Iterator[Sequence]:
        """Take out live sequences whose time is over, one after the other."""
        while self._heap and self._heap[0][0] <= now:
            sequence = self._of(heappop(self._heap))
            if sequence is not None:
                yield sequence

    def _of(self, entry: tuple[float, int, str, int]) -> Sequence | None:
        """Whose it is, if that one is still alive: its handle may be another one's by now."""
        _, arrival, gateway, handle = entry
        live = self._live.get((gateway, handle))
        return live if live is not None and live.arrival == arrival else None
