"""What a tick starts, and what it preempts for that."""

from __future__ import annotations

import pytest
from msgspec import structs

from baton.protocol import AdapterInfo, Sampling
from baton_scheduler.options import SchedulerOptions
from tests.fakes.hash_worker import expected_tokens, worker_info
from tests.support.scheduler_world import World, failure


def test_what_can_never_fit_is_refused_and_holds_nobody_up() -> None:
    world = World()
    world.join("w", worker_info(num_pages=4, page_size=4, max_model_len=100))
    long, short = world.submit([1] * 16, Sampling(1)), world.submit([1] * 15, Sampling(9))
    world.finish()
    assert (failure(long).status, failure(long).code) == (400, "context_length_exceeded")
    assert (len(short.tokens), short.end) == (1, "length")


@pytest.mark.row("F13.03")
def test_a_more_urgent_one_takes_the_place_of_one_that_runs() -> None:
    world = World(SchedulerOptions(scheduling_policy="priority"))
    world.join("w", worker_info(max_num_seqs=2))
    low = [world.submit([n] * 20, Sampling(20, seed=n), priority=n) for n in (1, 2)]
    for _ in range(4):
        world.round()
    before = [len(request.tokens) for request in low]
    assert min(before) > 0
    urgent = world.submit([7], Sampling(5, seed=7), priority=0)
    equal = world.submit([8], Sampling(5, seed=8), priority=1)
    world.tick()
    assert [(s.submit.priority, s.arrival) for s in world.state.queue] == [(1, 4), (2, 2)]
    assert world.state.counters.preemptions == 1
    while urgent.end is None:
        world.round()
    assert len(low[0].tokens) > before[0] and len(low[1].tokens) <= before[1] + 2
    world.finish()
    for request in (*low, urgent, equal):
        assert (request.tokens, request.end) == expected_tokens(request.prompt, request.sampling)


@pytest.mark.row("F13.03")
def test_nobody_is_preempted_when_that_would_not_be_enough() -> None:
    world = World(SchedulerOptions(scheduling_policy="priority"))
    world.join("w", worker_info(num_pages=8, page_size=4, max_num_seqs=4))
    world.submit([1] * 12, Sampling(9, seed=1), priority=0)
    world.submit([2] * 4, Sampling(4, seed=2), priority=5)
    world.round()
    big = world.submit([3] * 24, Sampling(2, seed=3), priority=1)
    world.tick()
    assert world.state.counters.preemptions == 0 and world.state.num_running == 2
    world.finish()
    assert big.end == "length"


@pytest.mark.row("F11.01")
def test_a_sequence_runs_where_its_adapter_is_and_nowhere_else() -> None:
    world, sql = World(), AdapterInfo("sql", b"d" * 16)
    world.join("plain", worker_info())
    world.join("able", structs.replace(worker_info(), adapters=(sql,), max_loras=1))
    adapted = [world.submit([n] * 20, Sampling(9, seed=n), adapter=sql.digest) for n in range(6)]
    world.submit([1], Sampling(9))
    world.tick()
    ran = {worker.name: worker.batch.occupied() for worker in world.state.fleet}
    assert len(ran["able"]) == 6 and len(ran["plain"]) == 1, "who has no adapter keeps the place"
    world.lose_worker("able")
    world.tick()
    assert all((failure(r).status, failure(r).code) == (404, "model_not_found") for r in adapted)
    assert not world.state.fleet.get("plain").batch.occupied()[1:]  # type: ignore[union-attr]
    world.finish()
