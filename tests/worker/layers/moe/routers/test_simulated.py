"""Simulated routing follows its distribution."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from baton_worker import spec
from baton_worker.layers.moe.routers.simulated import balanced, skewed

PLAIN = spec.Router(num_experts=8, top_k=3)


@pytest.mark.row("F06.11")
def test_the_balanced_simulator_gives_every_expert_the_same() -> None:
    routing = balanced(torch.randn(16, 8), PLAIN, None)
    assert routing.experts.flatten().bincount(minlength=8).tolist() == [6] * 8
    assert all(len(set(row)) == 3 for row in routing.experts.tolist())
    torch.testing.assert_close(routing.weights.sum(-1), torch.ones(16))


@pytest.mark.row("F06.11")
def test_the_skewed_simulator_follows_the_distribution_that_it_is_given() -> None:
    one = replace(PLAIN, top_k=1, kind="skewed", parameters=(("exponent", 2.0),))
    counts = skewed(torch.zeros(20_000, 8), one, None).experts.flatten().bincount()
    chance = torch.arange(1, 9).float().pow(-2.0)
    torch.testing.assert_close(
        counts / 20_000, chance / chance.sum(), atol=0.015, rtol=0.0, check_dtype=False
    )
    three = replace(one, top_k=3)
    assert all(
        len(set(row)) == 3 for row in skewed(torch.zeros(50, 8), three, None).experts.tolist()
    )
