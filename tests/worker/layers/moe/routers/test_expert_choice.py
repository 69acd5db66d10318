"""Experts that choose, against the definition."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from baton_worker import spec
from baton_worker.layers.moe.routers.base import NO_EXPERT
from baton_worker.layers.moe.routers.expert_choice import expert_choice

PLAIN = spec.Router(num_experts=8, top_k=3)


@pytest.mark.row("F06.14")
@pytest.mark.parametrize("capacity", [1.0, 0.5, 2.0])
def test_each_expert_takes_its_best_tokens(capacity: float) -> None:
    router = replace(PLAIN, kind="expert_choice", parameters=(("capacity", capacity),))
    logits = torch.randn(10, 8)
    routing = expert_choice(logits, router, None)
    scores, each = logits.softmax(-1), math.ceil(int(10 * 3 * capacity) / 8)
    taken = {
        (token, expert)
        for expert in range(8)
        for token in sorted(range(10), key=lambda t: (-scores[t, expert].item(), t))[:each]
    }
    got = set()
    for token, row in enumerate(routing.experts.tolist()):
        for slot, expert in enumerate(row):
            if expert == NO_EXPERT:
                assert routing.weights[token, slot] == 0
            else:
                got.add((token, expert))
                torch.testing.assert_close(routing.weights[token, slot], scores[token, expert])
    assert got == taken
