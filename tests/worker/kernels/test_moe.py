"""Expert kernels against a loop over visits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from baton.errors import ModelError
from baton_worker.kernels import moe
from baton_worker.kernels.moe import (
    Experts,
    GroupedExperts,
    LoopExperts,
    PaddedExperts,
    combine,
    dispatch,
)
from baton_worker.kernels.quantized_weights import quantise

GROUPING = [GroupedExperts, PaddedExperts]


def swiglu(inner: Tensor) -> Tensor:
    gate, up = inner.chunk(2, dim=-1)
    return F.silu(gate) * up


def experts(
    num: int,
    *,
    hidden: int = 10,
    size: int = 6,
    bias: bool = False,
    weigh_input: bool = False,
    dtype: torch.dtype = torch.float32,
    gated: bool = True,
) -> Experts:
    generator = torch.Generator().manual_seed(num)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    rows = 2 * size if gated else size
    return Experts(
        random(num, rows, hidden),
        random(num, hidden, size),
        random(num, rows) if bias else None,
        random(num, hidden) if bias else None,
        swiglu if gated else F.relu,
        weigh_input,
    )


def routed(num_tokens: int, num: int, slots: int, seed: int) -> tuple[Tensor, Tensor]:
    """Distinct experts per token, some slots empty, and weights."""
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.rand((num_tokens, num), generator=generator).argsort(-1)[:, :slots]
    weights = torch.rand((num_tokens, slots), generator=generator)
    return chosen, weights


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
    layer = experts(num, bias=bias, weigh_input=weigh_input, gated=gated)
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


def test_the_rows_of_a_token_are_added_in_slot_order() -> None:
    rows = torch.tensor([[[1e8], [1.0], [-1e8]], [[1e8], [-1e8], [1.0]]])
    assert moe.weighted_sum(rows, torch.ones(2, 3)).flatten().tolist() == [0.0, 1.0]


@pytest.mark.row("F06.02")
@given(
    num=st.integers(1, 12), num_tokens=st.integers(1, 20), seed=st.integers(0, 999), data=st.data()
)
@settings(max_examples=40, deadline=None)
def test_dispatch_and_combine_are_a_round_trip(
    num: int, num_tokens: int, seed: int, data: st.DataObject
) -> None:
    chosen, _ = routed(num_tokens, num, data.draw(st.integers(1, num)), seed)
    chosen = torch.where(torch.rand(chosen.shape) < 0.2, -1, chosen)
    visits, counts = dispatch(chosen, num)
    assert counts == [int((chosen == expert).sum()) for expert in range(num)]
    sent = chosen.flatten()[visits].tolist()
    assert sent == sorted(sent)
    x, slots = torch.randn(num_tokens, 4), chosen.shape[1]
    weights = (chosen >= 0) / (chosen >= 0).sum(-1, keepdim=True).clamp(min=1)
    back = combine(x[visits // slots], visits, weights)
    torch.testing.assert_close(back, x * (chosen >= 0).any(-1, keepdim=True))


@pytest.mark.row("F06.15")
def test_padded_experts_see_every_visit_in_its_own_row() -> None:
    places = moe._places([2, 0, 3])
    assert places.tolist() == [0, 1, 6, 7, 8]
    layer = experts(3)
    chosen, weights = torch.tensor([[2], [0], [2], [0], [2]]), torch.rand(5, 1)
    x = torch.randn(5, 10)
    expected = LoopExperts(layer)(x, chosen, weights)
    torch.testing.assert_close(PaddedExperts(layer)(x, chosen, weights), expected)


def test_a_kernel_may_be_named_and_then_it_is_this_one_or_none() -> None:
    try:
        moe.prefer("eager")
        assert isinstance(moe.choose(experts(2)), LoopExperts)
        moe.prefer("deep_gemm")
        with pytest.raises(ModelError, match="these experts: triton refused: it needs a GPU"):
            moe.choose(experts(2))
    finally:
        moe.prefer("auto")
    assert isinstance(moe.choose(experts(2)), GroupedExperts)


def test_the_first_kernel_that_does_not_refuse_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(moe.choose(experts(2)), GroupedExperts)
    monkeypatch.setattr(GroupedExperts, "refuses", classmethod(lambda cls, e: "it is off"))
    assert isinstance(moe.choose(experts(2)), LoopExperts)
    monkeypatch.setattr(LoopExperts, "refuses", classmethod(lambda cls, e: "so is it"))
    with pytest.raises(ModelError, match=r"for accelerators.*it is off.*so is it"):
        moe.choose(experts(2))
