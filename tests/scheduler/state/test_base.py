"""What is lost goes back to the queue, or is failed as the cause."""

from __future__ import annotations

import pytest

from baton.protocol import Sampling
from tests.fakes.hash_worker import expected_tokens
from tests.support.scheduler_world import World


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
