"""A world with one worker, and what its plans say."""

from __future__ import annotations

from baton.protocol import Plan, Sampling, WorkerInfo
from baton.protocol.token_columns import unpack
from baton_scheduler.options import SchedulerOptions
from tests.fakes.hash_worker import worker_info
from tests.support.scheduler_world import Request, World


def world(info: WorkerInfo, **limits: int) -> World:
    """A world with one worker."""
    made = World(SchedulerOptions(**limits))  # type: ignore[arg-type]
    made.join("w", info)
    return made


def rows(plan: Plan) -> dict[int, tuple[int, int, int]]:
    """slot -> (start, count, samples)"""
    columns = (unpack(plan.num_computed, "I"), unpack(plan.num_scheduled, "I"), plan.samples)
    return dict(zip(unpack(plan.rows, "I"), zip(*columns, strict=True), strict=True))


def several(max_steps: int = 8, info: WorkerInfo | None = None, **limits: int) -> World:
    """One whose plans cover several steps."""
    made = World(SchedulerOptions(**limits), max_steps=max_steps)  # type: ignore[arg-type]
    made.join("w", info or worker_info())
    return made


def decoding(here: World, *lengths: int) -> list[Request]:
    """Sequences of these lengths that have had their prompts computed."""
    requests = [here.submit([n, n], Sampling(length, seed=n)) for n, length in enumerate(lengths)]
    for _ in range(3):
        here.round()
    assert all(request.tokens for request in requests)
    return requests
