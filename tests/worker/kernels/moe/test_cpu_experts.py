"""Experts in one call against a loop over visits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from baton_worker import spec
from baton_worker.kernels.cpu import library
from baton_worker.kernels.moe.cpu_experts import CpuExperts, weighted_sum
from baton_worker.kernels.moe.grouped import GroupedExperts
from baton_worker.kernels.moe.loop import LoopExperts
from baton_worker.layers.moe.moe import between
from tests.support.worker.expert_layers import experts, routed

TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 5e-2}


@pytest.mark.skipif(library("experts") is None, reason="no C++ compiler here")
def test_equals_the_loop_beside_any_others() -> None:
    for dtype, tolerance in TOLERANCES.items():
        for weigh_input, kind in ((False, None), (True, None), (False, "int4_minimum")):
            given = {"hidden": 64, "size": 32, "bias": True, "dtype": dtype}
            layer = replace(experts(9, **given), fused="silu", weigh_input=weigh_input)
            layer = replace(layer, gate_up=layer.gate_up / 8, down=layer.down / 8)
            chosen, weights = routed(40, 9, 4, seed=3)
            chosen[1, 2], chosen[7] = 9, -1
            x = torch.randn(40, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
            expected = LoopExperts(replace(layer, quantised_as=None))(x, chosen, weights)
            kernel = GroupedExperts(replace(layer, quantised_as=kind))
            assert kernel.capture_blocker is None, "one call"
            together = kernel(x, chosen, weights)
            if kind is None:
                torch.testing.assert_close(together, expected, rtol=tolerance, atol=tolerance)
            else:
                assert (together - expected).norm() < 0.2 * expected.norm()
            assert not together[7].any()
            for some in (slice(0, 1), slice(7, 8), slice(1, 4), slice(10, 40)):
                alone = kernel(x[some], chosen[some], weights[some])
                assert torch.equal(alone, together[some])
            # Ranks with some of the experts each add visits up with the same bits.
            each = [kernel(x, chosen[:, s : s + 1], torch.ones(40, 1)) for s in range(4)]
            if not weigh_input:
                summed = weighted_sum(torch.stack(each, 1), weights)
                assert summed is not None and torch.equal(summed, together)
    assert CpuExperts.refuses([], [torch.neg], layer) is not None  # type: ignore[list-item]


@pytest.mark.skipif(library("experts") is None, reason="no C++ compiler here")
def test_gates_that_no_product_applies() -> None:
    chosen, weights = routed(20, 5, 3, seed=1)
    x = torch.randn(20, 10, generator=torch.Generator().manual_seed(0))
    for expert in (
        spec.Glu(6, "quick_gelu", limit=1.5, limit_first=True, up_offset=1.0),
        spec.Glu(6, "gelu", limit=0.5),
        spec.Glu(6, "silu", gate_scale=0.5),
        spec.Mlp(6, "relu2"),
    ):
        gated = isinstance(expert, spec.Glu)
        gate = between(expert)
        layer = replace(experts(5, bias=True, gated=gated), gate=gate, expert=expert)
        kernel = GroupedExperts(layer)
        assert kernel.capture_blocker is None, "one call"
        expected = LoopExperts(layer)(x, chosen, weights)
        torch.testing.assert_close(kernel(x, chosen, weights), expected, rtol=1e-4, atol=1e-4)
    unknown = replace(layer, expert=spec.Mlp(6, "cubed"))
    assert GroupedExperts(unknown).capture_blocker is not None
