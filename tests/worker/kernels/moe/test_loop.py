"""Experts applied visit by visit."""

from __future__ import annotations

import torch

from baton_worker.kernels.moe.loop import LoopExperts
from tests.support.worker.expert_layers import experts, swiglu


def test_each_visit_is_two_products_with_a_gate_between() -> None:
    layer = experts(3, bias=True)
    assert layer.gate_up_bias is not None and layer.down_bias is not None
    x, weights = torch.randn(2, 10), torch.tensor([[0.25, 0.75], [1.0, 2.0]])
    chosen = torch.tensor([[2, 0], [1, 3]])  # There is no expert 3.
    expected = torch.zeros(2, 10)
    for token, slot in ((0, 0), (0, 1), (1, 0)):
        expert = int(chosen[token, slot])
        inner = swiglu(layer.gate_up[expert] @ x[token] + layer.gate_up_bias[expert])
        returned = layer.down[expert] @ inner + layer.down_bias[expert]
        expected[token] += weights[token, slot] * returned
    torch.testing.assert_close(LoopExperts(layer)(x, chosen, weights), expected)
