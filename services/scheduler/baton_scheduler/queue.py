"""Sequences that wait, in the order in which they will run."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

from baton.registry import Registry
from baton_scheduler.request import Key, Sequence

ORDERS = Registry(
    "order",
    {
        "fcfs": "baton_scheduler.queue:fcfs",
        "priority": "baton_scheduler.queue:priority",
    },
)
"""`key(sequence) -> Key`: lower runs first, and the highest is preempted first."""

_key = attrgetter("key")


def fcfs(sequence: Sequence) -> Key:
    """First come, first served."""
    return (0, sequence.arrival)


def priority(sequence: Sequence) -> Key:
    """The lower priority value first; first come, first served among equals."""
    return (sequence.submit.priority, sequence.arrival)


class Queue:
    """Sorted by key. One that comes back after a preemption is at the front again by its key."""

    def __init__(self) -> None:
        self._items: list[Sequence] = []
        self.num_tokens = 0
        """Prompt and log tokens of all that wait."""

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._items)

    @property
    def head(self) -> Sequence | None:
        """The one that runs next."""
        return self._items[0] if self._items else None

    def push(self, sequence: Sequence) -> None:
        """Let a sequence wait."""
        insort(self._items, sequence, key=_key)
        self.num_tokens += sequence.num_tokens

    def remove(self, sequence: Sequence) -> None:
        """Take a waiting sequence out."""
        at = bisect_left(self._items, sequence.key, key=_key)
        assert self._items[at] is sequence
        del self._items[at]
        self.num_tokens -= sequence.num_tokens
