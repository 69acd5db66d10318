"""Decode rows of a step in a pipeline: while one stage runs some, others are in another stage."""

from __future__ import annotations

import numpy as np

from baton_scheduler.slot_table import Ints
from baton_scheduler.workers.worker import Worker


def fills_pipeline(worker: Worker) -> bool:
    """Whether a worker has enough sequences to keep all of its stages busy. Fewer run in every
    step, which is planned ahead of their results."""
    stages, batch = worker.info.pipeline_stages, worker.batch
    return 1 < stages <= len(batch.decoding()) + len(batch.prefilling())


def decode_rows(worker: Worker) -> Ints:
    """Slots that decode in the next step: all, or in a pipeline an equal share per stage of those
    that no step in flight runs."""
    batch = worker.batch
    decode = batch.decoding()
    if worker.info.pipeline_stages == 1 or not fills_pipeline(worker):
        return decode
    busy = np.zeros(batch.num_slots, np.bool_)
    for flight in worker.flights:
        busy |= (flight.owners != 0) & (flight.owners == batch.lease_id)
    most = -(-len(decode) // worker.info.pipeline_stages)
    return decode[~busy[decode]][:most]
