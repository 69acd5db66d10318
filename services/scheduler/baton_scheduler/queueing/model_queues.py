"""One queue of waiting sequences per model, so that no model waits for another one's workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count

from baton_scheduler.queueing.policies import ORDERS
from baton_scheduler.queueing.queue import Queue
from baton_scheduler.sequence import Sequence
from baton_scheduler.slot_table import Ints


class ModelQueues:
    """Queues of one policy by model; "" is the queue of sequences that any worker may run."""

    def __init__(self, policy: str, weights: Mapping[str, float]) -> None:
        self._kind, self._weights = ORDERS.load(policy), weights
        self._numbers = count(1)
        """Tenant accounts of all queues have different numbers."""
        self._queues: dict[str, Queue] = {}

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __iter__(self) -> Iterator[Sequence]:
        for queue in self._queues.values():
            yield from queue

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens of all waiting sequences."""
        return sum(queue.num_tokens for queue in self._queues.values())

    def of(self, model: str) -> Queue:
        """The queue of a model, created on first use."""
        queue = self._queues.get(model)
        if queue is None:
            queue = self._queues[model] = self._kind(self._weights, self._numbers)
        return queue

    def items(self) -> list[tuple[str, Queue]]:
        """(model, queue) in order of first use."""
        return list(self._queues.items())

    def for_workers(self, model: str) -> list[Queue]:
        """The queues that workers of a model serve."""
        return [queue for name, queue in self._queues.items() if name in ("", model)]

    def num_waiting(self, model: str) -> int:
        """Number of waiting sequences that a worker of the model may run."""
        return sum(map(len, self.for_workers(model)))

    def push(self, sequence: Sequence) -> None:
        """Add a waiting sequence."""
        self.of(sequence.model).push(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Remove a waiting sequence."""
        self.of(sequence.model).remove(sequence)

    def sampled(self, tenants: Ints) -> None:
        """Charge sampled tokens; one `Sequence.billed_tenant` per token."""
        for queue in self._queues.values():
            queue.sampled(tenants)

    def layout(self) -> bytes:
        """All state that later choices depend on, for the state's digest."""
        return b"".join(
            repr(model).encode() + queue.layout() for model, queue in self._queues.items()
        )
