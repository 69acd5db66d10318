"""The set of workers known to the scheduler."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from baton.kv.page_hashes import split_hashes
from baton.protocol import HeldPages, WorkerInfo
from baton_scheduler.sequence import Sequence
from baton_scheduler.workers.encode_workers import EncodeWorkers
from baton_scheduler.workers.worker import Worker

_REMEMBERED = 256
"""Number of departed workers whose epoch is remembered, so that it is not accepted again."""


class Fleet:
    """Workers by name."""

    def __init__(self, workers: Iterable[Worker] = ()) -> None:
        self._workers = {worker.name: worker for worker in workers}
        self._departed: dict[str, int] = {}
        self.encoders = EncodeWorkers()
        """Encode workers: they run no sequences and are not part of this set."""

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers.values())

    def __len__(self) -> int:
        return len(self._workers)

    def __contains__(self, name: object) -> bool:
        return name in self._workers

    def get(self, name: str | None) -> Worker | None:
        """The worker with this name; None if it is not present."""
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
        """Add a worker with an epoch that `refuses` accepts.

        Raises `ValueError` if the pages it reports are invalid.
        """
        assert name not in self._workers and not self.refuses(name, epoch)
        page_hashes = split_hashes(held) if held is not None else {}
        self._workers[name] = Worker(
            name, epoch, info, max_num_batched_tokens, caching=caching, page_hashes=page_hashes
        )

    def leave(self, name: str) -> Worker | None:
        """Remove and return a worker."""
        worker = self._workers.pop(name, None)
        if worker is not None and worker.flights.next_step > 1:
            self._departed[name] = worker.epoch
            if len(self._departed) > _REMEMBERED:
                del self._departed[next(iter(self._departed))]
        return worker

    def refuses(self, name: str, epoch: int) -> bool:
        """True if plans were sent in this epoch and the worker was then given up.

        Such a worker may still hold sequences and run old plans; it must join in a new epoch.
        """
        return self._departed.get(name) == epoch

    @property
    def models(self) -> list[str]:
        """Names of the models that have a worker, sorted."""
        return sorted({worker.info.model for worker in self})

    def serving(self, model: str) -> Fleet:
        """The present workers of a model; all of them if `model` is empty."""
        return Fleet(worker for worker in self if model in ("", worker.info.model))

    @property
    def open(self) -> bool:
        """True if some worker takes new sequences."""
        return any(not worker.draining for worker in self)

    def fits(self, sequence: Sequence) -> bool:
        """True if some worker could ever run the sequence."""
        return any(worker.fits(sequence) for worker in self if not worker.draining)

    def has_adapter(self, sequence: Sequence) -> bool:
        """True if some worker that takes work has the adapter of the sequence, if it has one."""
        return any(worker.has_adapter(sequence) for worker in self if not worker.draining)

    @property
    def budget(self) -> int:
        """Most tokens in one step of any worker; 0 without workers."""
        return max((worker.budget for worker in self), default=0)

    @property
    def max_model_len(self) -> int:
        """Maximum sequence length that every worker supports; 0 without workers."""
        return min((worker.max_model_len for worker in self), default=0)
