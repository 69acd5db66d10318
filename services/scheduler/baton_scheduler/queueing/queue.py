"""Sequences that wait, in the order in which they will run."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from operator import attrgetter

from baton_scheduler.sequence import Key, Sequence
from baton_scheduler.slot_table import Ints

_key = attrgetter("key")


def fcfs(sequence: Sequence) -> Key:
    """First come, first served."""
    return (0, sequence.arrival)


def priority(sequence: Sequence) -> Key:
    """The lower priority value first; first come, first served among equals."""
    return (sequence.submit.priority, sequence.arrival)


class Queue:
    """First come, first served: sorted by key, lower runs first, the highest is preempted first.

    One that comes back after a preemption is at the front again by its key.
    """

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        self._items: list[Sequence] = []
        self.num_tokens = 0
        """Prompt and log tokens of all that wait."""
        self._shares: dict[str, tuple[int, int]] = {}
        """tenant -> (sequences, tokens) of those that wait"""

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._items)

    def key(self, sequence: Sequence) -> Key:
        """Position of a sequence that arrives."""
        return fcfs(sequence)

    def outranks(self, waiting: Sequence, running: Sequence) -> bool:
        """Whether one that waits may take the place of one that runs."""
        return False

    def started(self, sequence: Sequence) -> None:
        """A sequence that was the head is about to run for the first time."""

    def charge(self, sequence: Sequence, num_tokens: int) -> None:
        """So many tokens of a prompt will be computed."""

    def sampled(self, payers: Ints) -> None:
        """Per token that was sampled, `Sequence.billed_tenant` of its sequence."""

    def layout(self) -> bytes:
        """All that later choices depend on, for the state's digest."""
        return repr([s.arrival for s in self]).encode()

    @property
    def head(self) -> Sequence | None:
        """The one that runs next: the first that does not wait for its leader."""
        return next((sequence for sequence in self._items if not sequence.waits), None)

    def push(self, sequence: Sequence) -> None:
        """Let a sequence wait."""
        insort(self._items, sequence, key=_key)
        self._count(sequence, 1)

    def remove(self, sequence: Sequence) -> None:
        """Take a waiting sequence out."""
        at = bisect_left(self._items, sequence.key, key=_key)
        assert self._items[at] is sequence
        del self._items[at]
        self._count(sequence, -1)

    def ahead(self, sequence: Sequence) -> tuple[int, int]:
        """(sequences, tokens) of those that wait and are to run before one that arrives."""
        at = bisect_left(self._items, sequence.key, key=_key)
        if at == len(self):
            return at, self.num_tokens
        return at, sum(other.num_tokens for other in self._items[:at])

    def share(self, tenant: str) -> tuple[int, int]:
        """How many sequences of a tenant wait, and how many tokens they have."""
        return self._shares.get(tenant, (0, 0))

    def _count(self, sequence: Sequence, sign: int) -> None:
        tenant, tokens = sequence.submit.tenant, sign * sequence.num_tokens
        number, total = self.share(tenant)
        self.num_tokens += tokens
        self._shares[tenant] = (number + sign, total + tokens)
        if not number + sign:
            del self._shares[tenant]


class Priority(Queue):
    """The lower priority value first; it takes the place of a running one with a higher value."""

    def key(self, sequence: Sequence) -> Key:
        """The client's value, then arrival."""
        return priority(sequence)

    def outranks(self, waiting: Sequence, running: Sequence) -> bool:
        """Of equals, whoever runs goes on."""
        return waiting.submit.priority < running.submit.priority
