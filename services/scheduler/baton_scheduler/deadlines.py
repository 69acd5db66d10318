"""Deadlines after which sequences end with an error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush

from baton_scheduler.sequence import Sequence

_SPARE = 1024
"""Number of stale entries, beyond the number of live sequences, that triggers a cleanup."""


class Deadlines:
    """Heap of deadlines by time and arrival. Entries of ended sequences are removed lazily."""

    def __init__(self, live: Mapping[tuple[str, int], Sequence]) -> None:
        self._live = live
        """Live sequences by gateway and handle."""
        self._heap: list[tuple[float, int, str, int]] = []
        """(deadline, arrival, gateway, handle)"""

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, sequence: Sequence, when: float) -> None:
        """Set the deadline of a live sequence."""
        sequence.deadline = when
        if len(self) > 2 * len(self._live) + _SPARE:
            self._heap = [entry for entry in self._heap if self._of(entry) is not None]
            heapify(self._heap)
        heappush(self._heap, (when, sequence.arrival, sequence.gateway, sequence.handle))

    def pop_expired(self, now: float) -> Iterator[Sequence]:
        """Remove and yield live sequences whose deadline has passed."""
        while self._heap and self._heap[0][0] <= now:
            sequence = self._of(heappop(self._heap))
            if sequence is not None:
                yield sequence

    def _of(self, entry: tuple[float, int, str, int]) -> Sequence | None:
        """The sequence of an entry, if alive; its handle may have been reused since."""
        _, arrival, gateway, handle = entry
        live = self._live.get((gateway, handle))
        return live if live is not None and live.arrival == arrival else None
