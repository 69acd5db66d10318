"""Placements by load."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton_worker.distributed.eplb.placement import heaviest, rank_loads, rebalance
from baton_worker.distributed.eplb.rearrangement import moves
from baton_worker.spec.expert_map import PLACEMENTS, ExpertMap


@pytest.mark.row("F14.12", "F14.13")
@settings(deadline=None, max_examples=60)
@given(st.data())
def test_every_expert_has_a_slot_and_no_rank_has_more_work(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 6))
    num_experts = data.draw(st.integers(size, 24))
    extra = [r for r in range(num_experts * (size - 1) + 1) if not (num_experts + r) % size]
    redundant = data.draw(st.sampled_from(extra))
    placement = data.draw(st.sampled_from(["linear"] if redundant else sorted(PLACEMENTS)))
    before = ExpertMap.placed(placement, num_experts, 0, size, redundant).held
    slots = (num_experts + redundant) // size
    for _ in range(2):  # From the first placement, then from one that was made.
        some = st.lists(st.integers(0, 1000), min_size=num_experts, max_size=num_experts)
        loads = data.draw(some)
        after = rebalance(loads, before)
        assert after == rebalance(list(loads), tuple(before))
        assert {e for experts in after for e in experts} == set(range(num_experts))
        assert [len(experts) for experts in after] == [slots] * size
        assert all(len(set(experts)) == slots for experts in after)
        assert sum(rank_loads(loads, after)) == pytest.approx(sum(loads))
        assert heaviest(loads, after) <= heaviest(loads, before)
        arrived = [list(experts) for experts in before]
        for move in moves(before, after):
            assert move.expert in before[move.source] and move.source != move.target
            assert move.expert not in before[move.target]
            arrived[move.target][move.slot] = move.expert
        assert tuple(map(tuple, arrived)) == after
        before = after


@pytest.mark.row("F14.12")
def test_busy_experts_are_replicated_and_spread() -> None:
    """The example of the module: without replicas a rank has at least 70 of 100 tokens."""
    loads = [60, 20, 10, 10]
    assert rank_loads(loads, ((0, 1), (2, 3))) == [80, 20]
    assert rank_loads(loads, rebalance(loads, ((0, 1), (2, 3)))) == [70, 30]
    replicated = rebalance(loads, ((0, 1, 2), (2, 3, 1)))
    assert rank_loads(loads, replicated) == [50, 50]
    assert all(0 in experts for experts in replicated)


def test_a_placement_that_gains_little_stays() -> None:
    """Weights that travel cost more than a few tokens."""
    held = ((0, 1), (2, 3))
    assert rebalance([0, 0, 0, 0], held) == held
    assert rebalance([51, 50, 50, 49], held) == held
