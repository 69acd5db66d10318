"""A world of prefill and decode workers."""

from __future__ import annotations

from baton_scheduler.options import SchedulerOptions
from tests.fakes.hash_worker import worker_info
from tests.support.scheduler_world import World


def split(decode: int = 1, *, decode_page_size: int = 8, **limits: object) -> World:
    """One prefill worker and some decode workers; nothing but transfers crosses between them."""
    world = World(SchedulerOptions(local_prefill_max_tokens=0, **limits))  # type: ignore[arg-type]
    world.join("p", worker_info(page_size=8, role="prefill", pages_address="p"))
    for number in range(decode):
        name = f"d{number}"
        info = worker_info(page_size=decode_page_size, role="decode", pages_address=name)
        world.join(name, info)
    return world
