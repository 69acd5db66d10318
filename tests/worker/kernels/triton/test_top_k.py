"""Top-k softmax against the router in torch."""

from __future__ import annotations

import pytest
import torch

from baton_worker.layers.moe.routers.top_k import top_k
from baton_worker.spec import Router


@pytest.mark.row("F21.09")
@pytest.mark.parametrize(("tokens", "experts", "count"), [(37, 60, 6), (1, 8, 2), (5, 3, 3)])
@pytest.mark.parametrize("ties", [True, False])
def test_equals_the_twin(
    tokens: int, experts: int, count: int, ties: bool, device: torch.device
) -> None:
    from baton_worker.kernels.triton.top_k import top_k_softmax

    logits = torch.randn(tokens, experts, generator=torch.Generator().manual_seed(experts))
    logits = (logits.round() if ties else logits).to(device)
    weights, chosen = top_k_softmax(logits, count)
    expected = top_k(logits, Router(experts, count), None)
    assert torch.equal(chosen, expected.experts), "the lowest expert first among equals"
    torch.testing.assert_close(weights, expected.weights, rtol=1e-6, atol=1e-7)


def test_experts_beyond_the_range_of_an_exponential_are_still_distinct(
    device: torch.device,
) -> None:
    from baton_worker.kernels.triton.top_k import top_k_softmax

    logits = torch.tensor([[300.0, -300.0, -300.0, 0.0, -301.0]], device=device)
    weights, chosen = top_k_softmax(logits, 4)
    assert sorted(chosen[0].tolist()) == [0, 1, 2, 3]
    assert weights[0].tolist() == [1.0, 0.0, 0.0, 0.0]
