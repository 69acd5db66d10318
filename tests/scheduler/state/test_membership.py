"""Workers join, drain and leave."""

from __future__ import annotations

import pytest

from baton.protocol import Sampling
from baton_scheduler.events import (
    WorkerDraining,
)
from baton_scheduler.options import SchedulerOptions
from tests.fakes.hash_worker import worker_info
from tests.support.scheduler_world import World


@pytest.mark.row("F12.01")
def test_what_a_worker_still_holds_when_it_joins_anew_is_found() -> None:
    world = World()
    world.join("w")
    prompt = list(range(64))
    world.submit(prompt, Sampling(9, seed=1))
    world.finish()
    world.tick(1.0)
    world.round()
    world.rejoin("w")
    again = world.submit([*prompt, 7], Sampling(9, seed=2))
    world.finish()
    assert again.cached == 64
    world.clear_cache()
    world.tick()
    world.hurry("w")
    world.rejoin("w")
    assert not world.state.fleet.get("w").pool.num_cached  # type: ignore[union-attr]


def test_what_a_page_held_before_it_was_written_anew_is_not_found() -> None:
    world = World(SchedulerOptions(max_num_batched_tokens=32))
    world.join("w", worker_info(num_pages=8, max_model_len=128, max_num_batched_tokens=32))
    first = list(range(64))
    world.submit(first, Sampling(1, seed=1))
    world.finish()
    world.tick(1.0)
    world.hurry("w")
    other = world.submit(list(range(100, 210)), Sampling(9, seed=2))
    for _ in range(4):  # It has all pages, and has written to most, but few have their names yet.
        world.round()
    assert not other.tokens
    world.abort("g", 2)
    world.rejoin("w")
    again = world.submit([*first, 7], Sampling(9, seed=3))
    world.finish()
    assert again.cached is not None and again.cached < 64


def test_a_draining_worker_finishes_and_gets_nothing_new() -> None:
    world = World()
    world.join("old")
    first = world.submit([1], Sampling(6))
    world.round()
    world.apply(WorkerDraining("old"))
    world.join("new")
    second = world.submit([2], Sampling(6))
    world.tick()
    assert world.state.fleet.get("new") is not None
    assert len(world.state.fleet.get("new").batch) == 1  # type: ignore[union-attr]
    world.finish()
    world.round()
    assert (first.end, second.end) == ("length", "length")
    assert world.peers["old"].engine.slots == {}
