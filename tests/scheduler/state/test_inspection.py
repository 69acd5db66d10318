"""The digest of the state."""

from __future__ import annotations

from baton.protocol import Sampling
from baton_scheduler.events import (
    Tick,
)
from tests.support.scheduler_world import World


def test_equal_histories_have_equal_digests_and_different_ones_do_not() -> None:
    worlds = [World(), World(), World()]
    for number, world in enumerate(worlds):
        world.join("w")
        world.submit([1], Sampling(3 + (number == 2)))
        for _ in range(4):
            world.round()
    digests = [world.state.digest() for world in worlds]
    assert digests[0] == digests[1] != digests[2]
    worlds[0].apply(Tick(99.0))
    assert worlds[0].state.digest() != digests[1]
