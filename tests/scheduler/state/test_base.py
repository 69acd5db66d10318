"""What is lost goes back to the queue, or is failed as the cause."""

from __future__ import annotations

import pytest

from baton.protocol import Sampling
from baton_scheduler.options import SchedulerOptions
from tests.fakes.hash_worker import expected_tokens, worker_info
from tests.support.scheduler_world import World, failure


@pytest.mark.row("F13.02")
def test_after_a_loss_sequences_go_on_from_their_logs_in_front_of_later_ones() -> None:
    world = World()
    world.join("w")
    first = [world.submit([n], Sampling(9, seed=n)) for n in range(3)]
    for _ in range(4):
        world.round()
    kept = [len(request.tokens) for request in first]
    assert min(kept) > 0
    world.lose_worker()
    world.submit([7], Sampling(2))
    assert [s.arrival for s in world.state.queue] == [1, 2, 3, 4]
    world.join("w")
    world.tick()
    entered = world.plans[-2].new_sequences
    assert [len(new.tokens) // 4 - new.num_prompt for new in entered[:3]] == kept
    world.finish()
    for request in first:
        assert (request.tokens, request.end) == expected_tokens(request.prompt, request.sampling)


def test_a_sequence_that_was_there_at_two_losses_is_quarantined() -> None:
    world = World()
    request = world.submit([1], Sampling(50))
    for _ in range(2):
        world.join("w")
        world.round()
        world.lose_worker()
    assert (failure(request).status, failure(request).code) == (500, "request_quarantined")


def test_a_sequence_that_the_worker_had_not_begun_is_not_blamed() -> None:
    world = World(SchedulerOptions(plans_in_flight=1, max_worker_losses=1))
    world.join("w", worker_info(max_num_batched_tokens=50))
    decoding = world.submit([1], Sampling(50))
    world.round()
    prefilling, placed = world.submit([2] * 49, Sampling(5)), world.submit([3], Sampling(5))
    world.tick()
    assert world.state.num_running == 3
    world.lose_worker()
    assert (decoding.end, prefilling.end, placed.end) == ("failed", "failed", None)
