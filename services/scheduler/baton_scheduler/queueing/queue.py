"""Queue of waiting sequences, in the order in which they will run."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from operator import attrgetter

from baton_scheduler.sequence import Key, Sequence
from baton_scheduler.slot_table import Ints

_key = attrgetter("key")


def fcfs(sequence: Sequence) -> Key:
    """First come, first served; background work behind everything else."""
    return (int(sequence.is_background), sequence.arrival)


def priority(sequence: Sequence) -> Key:
    """Lower priority value first; first come, first served among equals."""
    return (sequence.submit.priority, sequence.arrival)


class Queue:
    """First come, first served: sorted by key; the lowest runs first, the highest is preempted
    first.

    A preempted sequence keeps its key and so returns to the front.
    """

    def __init__(
        self, weights: Mapping[str, float] | None = None, numbers: Iterator[int] | None = None
    ) -> None:
        """`weights` of tenants; `numbers` of their accounts, for policies that have either."""
        self._items: list[Sequence] = []
        self.num_tokens = 0
        """Prompt and output tokens of all waiting sequences."""
        self._shares: dict[str, tuple[int, int]] = {}
        """tenant -> (sequences, tokens) waiting"""

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._items)

    def key(self, sequence: Sequence) -> Key:
        """Queue position of a sequence that arrives."""
        return fcfs(sequence)

    def outranks(self, waiting: Sequence, running: Sequence) -> bool:
        """True if a waiting sequence may preempt a running one."""
        return running.is_background and not waiting.is_background

    def started(self, sequence: Sequence) -> None:
        """The head of the queue is about to run for the first time."""

    def charge(self, sequence: Sequence, num_tokens: int) -> None:
        """Charge `num_tokens` prompt tokens that will be computed."""

    def sampled(self, tenants: Ints) -> None:
        """Charge sampled tokens; one `Sequence.billed_tenant` per token."""

    def layout(self) -> bytes:
        """All state that later choices depend on, for the state's digest."""
        return repr([s.arrival for s in self]).encode()

    @property
    def head(self) -> Sequence | None:
        """Next sequence to run: the first that does not wait for its leader."""
        return next((sequence for sequence in self._items if not sequence.waits), None)

    def push(self, sequence: Sequence) -> None:
        """Add a waiting sequence."""
        insort(self._items, sequence, key=_key)
        self._count(sequence, 1)

    def remove(self, sequence: Sequence) -> None:
        """Remove a waiting sequence."""
        at = bisect_left(self._items, sequence.key, key=_key)
        assert self._items[at] is sequence
        del self._items[at]
        self._count(sequence, -1)

    def ahead(self, sequence: Sequence) -> tuple[int, int]:
        """(sequences, tokens) that wait ahead of one that arrives."""
        at = bisect_left(self._items, sequence.key, key=_key)
        if at == len(self):
            return at, self.num_tokens
        return at, sum(other.num_tokens for other in self._items[:at])

    def share(self, tenant: str) -> tuple[int, int]:
        """(sequences, tokens) of a tenant that wait."""
        return self._shares.get(tenant, (0, 0))

    def _count(self, sequence: Sequence, sign: int) -> None:
        tenant, tokens = sequence.submit.tenant, sign * sequence.num_tokens
        number, total = self.share(tenant)
        self.num_tokens += tokens
        self._shares[tenant] = (number + sign, total + tokens)
        if not number + sign:
            del self._shares[tenant]


class Priority(Queue):
    """Lower priority value first; it preempts running sequences with a higher value."""

    def key(self, sequence: Sequence) -> Key:
        """Priority value, then arrival."""
        return priority(sequence)

    def outranks(self, waiting: Sequence, running: Sequence) -> bool:
        """True if its priority value is lower; equals do not preempt."""
        return waiting.submit.priority < running.submit.priority
