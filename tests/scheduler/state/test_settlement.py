"""Results of steps."""

from __future__ import annotations

import pytest

from baton.protocol import Result, Sampling
from baton.protocol.token_columns import pack
from baton_scheduler.events import (
    Settled,
)
from tests.support.scheduler_world import World


@pytest.mark.parametrize(("epoch", "step"), [(99, 1), (1, 77)])
def test_a_result_of_another_epoch_or_step_is_dropped_and_counted(epoch: int, step: int) -> None:
    world = World()
    world.join("w")
    world.submit([1], Sampling(3))
    world.tick()
    stale = Result(epoch, step, pack([0], "I"), pack([0], "I"), b"\x01", pack([1]))
    assert world.apply(Settled("w", stale)) == []
    assert world.state.counters.stale_results == 1
