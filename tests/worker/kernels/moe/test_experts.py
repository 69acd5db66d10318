"""Expert kernels against a loop over visits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baton_worker.kernels.moe.experts import Experts
from baton_worker.kernels.moe.grouped import GroupedExperts
from baton_worker.kernels.moe.loop import LoopExperts
from baton_worker.kernels.moe.padded import PaddedExperts
from baton_worker.kernels.quantized_weights import quantise
from tests.support.worker.expert_layers import experts, routed, swiglu

GROUPING = [GroupedExperts, PaddedExperts]


@pytest.mark.row("F06.01")
@pytest.mark.parametrize("kernel", GROUPING)
@given(
    num=st.integers(1, 20), num_tokens=st.integers(1, 30), seed=st.integers(0, 999), data=st.data()
)
@settings(max_examples=25, deadline=None)
def test_equals_the_loop(
    kernel: type, num: int, num_tokens: int, seed: int, data: st.DataObject
) -> None:
    bias, weigh_input, gated = (data.draw(st.booleans()) for _ in range(3))
    fused = data.draw(st.sampled_from([None, "silu"])) if gated else None
    layer = experts(num, bias=bias, weigh_input=weigh_input, gated=gated, fused=fused)
    chosen, weights = routed(num_tokens, num, data.draw(st.integers(1, num)), seed)
    x = torch.randn(num_tokens, 10)
    expected = LoopExperts(layer)(x, chosen, weights)
    torch.testing.assert_close(kernel(layer)(x, chosen, weights), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.row("F06.01")
@pytest.mark.parametrize("kernel", GROUPING)
def test_experts_without_tokens_and_tokens_without_experts(kernel: type) -> None:
    layer, x = experts(6, bias=True), torch.randn(3, 10)
    chosen = torch.tensor([[5, -1], [-1, -1], [5, 6]])
    weights = torch.tensor([[0.5, 0.0], [0.0, 0.0], [0.25, 0.75]])
    out = kernel(layer)(x, chosen, weights)
    torch.testing.assert_close(out, LoopExperts(layer)(x, chosen, weights))
    assert (out[1] == 0).all() and (out[0] != 0).all()
    nowhere = torch.full_like(chosen, -1)
    assert (kernel(layer)(x, nowhere, torch.zeros_like(weights)) == 0).all()


@pytest.mark.parametrize("kernel", GROUPING)
def test_half_precision_rounds_once_per_product(kernel: type) -> None:
    layer = experts(8, hidden=64, size=32, dtype=torch.bfloat16)
    chosen, weights = routed(12, 8, 3, seed=3)
    x = torch.randn(12, 64).to(torch.bfloat16)
    exact = experts(8, hidden=64, size=32)
    exact = Experts(layer.gate_up.float(), layer.down.float(), None, None, swiglu)
    expected = LoopExperts(exact)(x.float(), chosen, weights)
    error = (kernel(layer)(x, chosen, weights).float() - expected).abs().mean()
    plain = (LoopExperts(layer)(x, chosen, weights).float() - expected).abs().mean()
    assert error < 1.3 * plain


@pytest.mark.parametrize("kernel", GROUPING)
def test_a_token_gets_the_same_beside_any_others(kernel: type) -> None:
    layer = experts(5)
    chosen, weights = routed(40, 5, 3, seed=1)
    x = torch.randn(40, 10)
    together = kernel(layer)(x, chosen, weights)
    for token in (0, 17, 39):
        alone = kernel(layer)(*(t[token : token + 1] for t in (x, chosen, weights)))
        torch.testing.assert_close(together[token : token + 1], alone, atol=1e-5, rtol=1e-5)


@pytest.mark.row("F06.05")
@pytest.mark.parametrize("kind", ["int8", "int4_minimum"])
@pytest.mark.parametrize("kernel", [*GROUPING, LoopExperts])
def test_every_expert_is_rounded_by_its_own_scales(kernel: type, kind: str) -> None:
    def scaled() -> Experts:
        layer = experts(4, hidden=64, size=32)
        # Experts a thousand times apart: one scale for all would lose the smallest.
        size = torch.tensor([1.0, 1e-3, 10.0, 0.1])[:, None, None]
        return replace(layer, gate_up=layer.gate_up * size, down=layer.down * size)

    exact = scaled()
    by_hand = replace(
        exact,
        gate_up=torch.stack([quantise(w, kind).dequantise() for w in exact.gate_up]),
        down=torch.stack([quantise(w, kind).dequantise() for w in exact.down]),
    )
    x, chosen = torch.randn(12, 64), torch.arange(12)[:, None] % 4
    weights = torch.ones(12, 1)
    ours = kernel(replace(scaled(), quantised_as=kind))(x, chosen, weights)
    expected = LoopExperts(by_hand)(x, chosen, weights)
    for expert in range(4):
        mine = chosen[:, 0] == expert
        error = (ours[mine] - expected[mine]).norm() / expected[mine].norm()
        assert error < 0.02  # the CPU kernels round x to eight bits too


def test_weights_that_are_no_whole_groups_stay_floats() -> None:
    layer = experts(3, hidden=10, size=6)
    x, chosen, weights = torch.randn(5, 10), torch.arange(5)[:, None] % 3, torch.ones(5, 1)
    expected = LoopExperts(layer)(x, chosen, weights)
    for kernel in (*GROUPING, LoopExperts):
        ours = kernel(replace(layer, quantised_as="int8"))(x, chosen, weights)
        torch.testing.assert_close(ours, expected)
