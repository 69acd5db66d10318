"""Cost of encoding a media item apart, or on the worker that prefills.

    apart    backlog of the encode workers + encode + transfer
    local    encode, on a worker that holds up every sequence in its batch meanwhile

Both are in seconds, by the cost models of measured encodings and transfers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from baton_scheduler.placement.transfer_cost import TransferCost
from baton_scheduler.workers.cost_model import LinearCostModel
from baton_scheduler.workers.encode_worker import EncodeWorker
from baton_scheduler.workers.worker import Worker


def worth_encoding_apart(
    num_tokens: int,
    num_bytes: float,
    ahead: int,
    encoders: Sequence[EncodeWorker],
    local: Sequence[Worker],
    links: TransferCost,
) -> bool:
    """True if an item of `num_tokens` embeddings should go to an encode worker.

    Without measurements of both ways it should: that is what encode workers were started for.

    Args:
        num_bytes: of its embeddings.
        ahead: embeddings that wait for an encode worker.
        encoders: encode workers that take work; at least one.
        local: workers that may prefill its sequence.
    """
    here = [worker for worker in local if worker.encoder.known]
    pace = LinearCostModel.together(worker.pace for worker in encoders)
    if not pace.known or not here:
        return True
    wait = min(worker.backlog for worker in encoders)
    wait += pace.seconds(ahead, 0) / len(encoders)
    carried = _transfer(encoders, local, num_bytes, links)
    return wait + pace.seconds(num_tokens, 1) + carried <= _local_seconds(num_tokens, here)


def _local_seconds(num_tokens: int, workers: Iterable[Worker]) -> float:
    """Seconds on the worker where it costs least, of all sequences together."""
    return min(w.encoder.seconds(num_tokens, 1) * (1 + len(w.batch)) for w in workers)


def _transfer(
    encoders: Iterable[EncodeWorker], local: Sequence[Worker], num_bytes: float, links: TransferCost
) -> float:
    return min(
        links.seconds(source.name, target.name, num_bytes)
        for source in encoders
        for target in local
    )
