"""What a tick starts, and what it preempts for that."""

from __future__ import annotations

import pytest

from baton.protocol import Sampling
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
