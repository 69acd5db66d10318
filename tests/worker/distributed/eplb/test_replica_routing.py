"""Visits to slots, and results back to the tokens that they belong to."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from baton_worker.distributed.eplb.replica_routing import ReplicaTable, plan_visits

HELD = ((0, 1), (2, 0), (3, 0))
CPU = torch.device("cpu")


@pytest.mark.row("F14.12")
def test_replicas_take_visits_in_turn() -> None:
    table = ReplicaTable(HELD, CPU)
    experts = torch.tensor([0, 3, 0, 0, -1, 2, 0, 9, 0, 1])
    assert table.slots(experts).tolist() == [0, 4, 3, 5, -1, 2, 0, -1, 3, 1]
    counts = Counter(table.slots(torch.zeros(100, dtype=torch.int64)).tolist())
    assert counts == {0: 34, 3: 33, 5: 33}
    assert ReplicaTable(((1, 0), (2, 3)), CPU).slots(experts).tolist() == [
        1,
        3,
        1,
        1,
        -1,
        2,
        1,
        -1,
        1,
        0,
    ]
    assert table.slots(torch.empty(0, dtype=torch.int64)).shape == (0,)


@pytest.mark.row("F14.12")
@pytest.mark.row("F06.02")
def test_results_come_back_to_their_tokens() -> None:
    """Every rank sends what it has computed; laid out by `returned` all visits are there once."""
    generator, size, width = torch.Generator().manual_seed(1), 3, 2
    for tokens in ([3, 0, 2], [0, 4, 0], [1, 1, 1]):
        slots = torch.randint(-1, 6, (sum(tokens), width), generator=generator)
        plans = [plan_visits(slots, 2, tokens, rank) for rank in range(size)]
        flat = slots.flatten().tolist()
        for rank, plan in enumerate(plans):
            assert plan.counts == plans[0].counts and sum(plan.counts[rank]) == len(plan.local)
            assert [rank * 2 + slot for slot in plan.slots] == [flat[visit] for visit in plan.local]
        for rank in range(size):
            arrived = [
                visit
                for plan, counts in zip(plans, plans[0].counts, strict=True)
                for visit in torch.split(plan.local, counts)[rank].tolist()
            ]
            first = sum(tokens[:rank]) * width
            assert [first + place for place in plans[rank].returned.tolist()] == arrived
            mine = range(first, first + tokens[rank] * width)
            assert sorted(arrived) == [visit for visit in mine if flat[visit] >= 0]
