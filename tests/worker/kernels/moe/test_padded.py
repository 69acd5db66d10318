"""Experts padded to the busiest."""

from __future__ import annotations

import pytest
import torch

from baton_worker.kernels.moe.loop import LoopExperts
from baton_worker.kernels.moe.padded import PaddedExperts, _places
from tests.support.worker.expert_layers import experts


@pytest.mark.row("F06.15")
def test_padded_experts_see_every_visit_in_its_own_row() -> None:
    places = _places([2, 0, 3])
    assert places.tolist() == [0, 1, 6, 7, 8]
    layer = experts(3)
    chosen, weights = torch.tensor([[2], [0], [2], [0], [2]]), torch.rand(5, 1)
    x = torch.randn(5, 10)
    expected = LoopExperts(layer)(x, chosen, weights)
    torch.testing.assert_close(PaddedExperts(layer)(x, chosen, weights), expected)
