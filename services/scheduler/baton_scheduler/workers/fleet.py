"""The workers that the state knows."""

from __future__ import annotations

from collections.abc import Iterator

from baton.kv.page_hashes import split_hashes
from baton.protocol import HeldPages, WorkerInfo
from baton_scheduler.sequence import Sequence
from baton_scheduler.workers.worker import Worker

_REMEMBERED = 256
"""Departed workers whose epoch is kept, so that it is not granted again."""


class Fleet:
    """Workers by name."""

    def __init__(self) -> None:
        self._workers: dict[str, Worker] = {}
        self._departed: dict[str, int] = {}

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers.values())

    def __len__(self) -> int:
        return len(self._workers)

    def __contains__(self, name: object) -> bool:
        return name in self._workers

    def get(self, name: str | None) -> Worker | None:
        """The worker of that name, if it is here."""
        return None if name is None else self._workers.get(name)

    def join(
        self,
        name: str,
        epoch: int,
        info: WorkerInfo,
        max_num_batched_tokens: int,
        *,
        held: HeldPages | None = None,
        caching: bool = True,
    ) -> None:
        """Take a worker in, with an epoch that `refuses` does not name.

        Raises `ValueError` when it cannot have the pages that it holds.
        """
        assert name not in self._workers and not self.refuses(name, epoch)
        names = split_hashes(held) if held is not None else {}
        self._workers[name] = Worker(
            name, epoch, info, max_num_batched_tokens, caching=caching, names=names
        )

    def leave(self, name: str) -> Worker | None:
        """Forget a worker and return it."""
        worker = self._workers.pop(name, None)
        if worker is not None and worker.flights.next_step > 1:
            self._departed[name] = worker.epoch
            if len(self._departed) > _REMEMBERED:
                del self._departed[next(iter(self._departed))]
        return worker

    def refuses(self, name: str, epoch: int) -> bool:
        """Whether this epoch was given plans and then given up.

        Such a worker may still hold sequences and run old plans; it starts from nothing, in a new
        epoch, or not at all.
        """
        return self._departed.get(name) == epoch

    @property
    def open(self) -> bool:
        """Some worker takes new sequences."""
        return any(not worker.draining for worker in self)

    def fits(self, sequence: Sequence) -> bool:
        """Whether the sequence could ever run on some worker."""
        return any(worker.fits(sequence) for worker in self if not worker.draining)

    @property
    def max_model_len(self) -> int:
        """Longest sequence that every worker can run; 0 without workers."""
        return min((worker.max_model_len for worker in self), default=0)
