"""The workers of the role `encode` that the scheduler knows."""

from __future__ import annotations

from collections.abc import Iterable

from baton_scheduler.workers.encode_worker import EncodeWorker
from baton_scheduler.workers.worker import Worker


class EncodeWorkers(dict[str, EncodeWorker]):
    """Encode workers by name."""

    def serving(self, model: str) -> list[EncodeWorker]:
        """Encode workers of a model that accept work; of all models if `model` is empty."""
        all_of = [w for w in self.values() if model in ("", w.info.model)]
        return [worker for worker in all_of if not worker.draining]

    def usable(self, model: str, local: Iterable[Worker]) -> list[EncodeWorker]:
        """Those whose embeddings a prefill worker accepts: same layout and same version of the
        weights."""
        takes = {(w.info.encoder_layout, w.target.digest) for w in local if w.info.encoder_layout}
        able = self.serving(model)
        return [w for w in able if (w.info.encoder_layout, w.info.weights.digest) in takes]

    def least_loaded(self, model: str) -> EncodeWorker | None:
        """The one that takes the next encoding of a model; None while all are busy."""
        free = [worker for worker in self.serving(model) if worker.free]
        return min(free, key=lambda worker: worker.load, default=None)

    def backlog(self, model: str, num_queued: int) -> float:
        """Estimated seconds until `num_queued` embeddings of a model are encoded, behind what is in
        flight."""
        workers = self.serving(model)
        if not workers:
            return 0.0
        seconds = (w.backlog + w.encode_cost.seconds(num_queued, 0) / len(workers) for w in workers)
        return sum(seconds) / len(workers)

    def accepts(self, target: Worker, source: str) -> bool:
        """Whether a worker accepts the embeddings of an encode worker, or of one not yet chosen."""
        worker = self.get(source)
        return worker is None or target.info.encoder_layout == worker.info.encoder_layout


__all__ = ["EncodeWorkers"]
