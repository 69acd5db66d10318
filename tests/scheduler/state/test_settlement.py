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


def test_a_request_at_fault_is_told_so_and_nobody_else() -> None:
    world = World()
    world.join("w")
    bad, other, lost = (world.submit([number], Sampling(3, seed=1)) for number in (1, 2, 3))
    world.tick()
    why = {0: "its embeddings are not finite", 2: "its text is endless"}
    rows = (pack([1], "I"), pack([0], "I"), b"\x01", pack([other.expected[0][0]]))
    fault = {"invalid": pack([0], "I"), "unfollowable": pack([2], "I")}
    epoch = world.peers["w"].epoch
    world.apply(Settled("w", Result(epoch, 1, *rows, failed=why, **fault)))
    assert bad.failed is not None and bad.failed.status == 400
    assert lost.failed is not None and lost.failed.code == "grammar_too_complex"
    assert lost.failed.status == 400 and "further: its text is endless." in lost.failed.message
    assert "not finite" in bad.failed.message and other.tokens == other.expected[0][:1]
