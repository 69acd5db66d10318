"""Cost of encoding a media item on an encode worker, or on the worker that prefills.

    remote   backlog of the encode workers + encode + transfer
    local    encode, while every other sequence of the batch waits

Both are in seconds, by the cost models of measured encodings and transfers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from baton_scheduler.placement.transfer_cost import TransferCost
from baton_scheduler.workers.cost_model import LinearCostModel
from baton_scheduler.workers.encode_worker import EncodeWorker
from baton_scheduler.workers.worker import Worker


def worth_remote_encoding(
    num_tokens: int,
    num_bytes: float,
    ahead: int,
    encoders: Sequence[EncodeWorker],
    local: Sequence[Worker],
    links: TransferCost,
) -> bool:
    """True if an item of `num_tokens` embeddings should go to an encode worker.

    True without measurements of both, since encode workers are present for this purpose.

    Args:
        num_bytes: of its embeddings.
        ahead: embeddings that wait for an encode worker.
        encoders: encode workers that take work; at least one.
        local: workers that may prefill its sequence.
    """
    measured = [worker for worker in local if worker.encode_cost.measured]
    remote = LinearCostModel.together(worker.encode_cost for worker in encoders)
    if not remote.measured or not measured:
        return True
    wait = min(worker.backlog for worker in encoders)
    wait += remote.seconds(ahead, 0) / len(encoders)
    transfer = _transfer(encoders, local, num_bytes, links)
    return wait + remote.seconds(num_tokens, 1) + transfer <= _local_seconds(num_tokens, measured)


def _local_seconds(num_tokens: int, workers: Iterable[Worker]) -> float:
    """Seconds on the worker where the encoding delays all its sequences least."""
    return min(w.encode_cost.seconds(num_tokens, 1) * (1 + len(w.batch)) for w in workers)


def _transfer(
    encoders: Iterable[EncodeWorker], local: Sequence[Worker], num_bytes: float, links: TransferCost
) -> float:
    return min(
        links.seconds(source.name, target.name, num_bytes)
        for source in encoders
        for target in local
    )
