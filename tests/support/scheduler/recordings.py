"""Recorded loads for simulations."""

from __future__ import annotations

from pathlib import Path

from baton.protocol import Sampling
from baton.protocol.token_columns import pack
from baton_scheduler.options import SchedulerOptions
from tests.fakes.hash_worker import token, worker_info
from tests.support.scheduler_world import Recorded


def flood(path: Path, **limits: object) -> Recorded:
    """30 requests of one tenant, then 4 of another, and a loss of the worker in between."""
    limits = {"scheduling_policy": "fcfs", "max_num_batched_tokens": 32} | limits
    world = Recorded(path, SchedulerOptions(**limits))  # type: ignore[arg-type]
    world.join(
        "w", worker_info(num_pages=30, page_size=4, max_num_seqs=4)
    ).engine.duration_us = 10_000
    for number in range(30):
        stop = token(pack([number] * 8), number, 6)
        sampling = Sampling(12, seed=number, stop_ids=(stop,) if number % 2 else ())
        world.submit([number] * 8, sampling, tenant="flood")
    for number in range(4):
        world.round()
        world.submit([number] * 8, Sampling(4, seed=number), tenant="calm")
    world.lose_worker()
    world.join(
        "w", worker_info(num_pages=30, page_size=4, max_num_seqs=4)
    ).engine.duration_us = 10_000
    world.finish()
    world.recorder.close()
    return world
