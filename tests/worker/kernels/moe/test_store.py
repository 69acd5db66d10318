"""Experts one by one: taken from one kernel, put into another of the same layer."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest
import torch

from baton_worker.kernels.cpu.linear import CpuLinear
from baton_worker.kernels.linear import LinearSpec, PlainLinear
from baton_worker.kernels.moe.grouped import GroupedExperts
from baton_worker.kernels.moe.loop import LoopExperts
from baton_worker.kernels.moe.padded import PaddedExperts
from baton_worker.kernels.moe.store import KernelStore, StackedStore
from baton_worker.kernels.quantized_weights import Rounding
from tests.support.worker.expert_layers import experts


def kernel(kind: type, seed: int, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """Three experts with biases, of weights of their own."""
    layer = experts(3, hidden=64, size=32, bias=True, dtype=dtype)
    parts = (layer.gate_up, layer.down, layer.gate_up_bias, layer.down_bias)
    names = ("gate_up", "down", "gate_up_bias", "down_bias")
    given: dict[str, Any] = {
        n: t.roll(seed, -1) for n, t in zip(names, parts, strict=True) if t is not None
    }
    return kind(replace(layer, **given, **changes))


@pytest.mark.row("F14.13")
def test_an_expert_is_the_same_wherever_it_is_put() -> None:
    """Floats, compact floats and blocks, as rows of common tensors and as kernels of their own."""
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(1))
    changes: dict[str, Any]
    for kind, dtype, changes in (
        (LoopExperts, torch.float32, {}),
        (PaddedExperts, torch.float32, {}),
        (GroupedExperts, torch.float32, {}),
        (GroupedExperts, torch.bfloat16, {"fused": "silu"}),
        (GroupedExperts, torch.float32, {"quantised_as": "int4_minimum"}),
    ):
        source, target = (kernel(kind, seed, dtype, **changes) for seed in (1, 2))
        assert source.store.refuses() is None and source.store.layout == target.store.layout
        given = x.to(dtype)

        def run(of: Any, expert: int) -> Any:
            return of(given, torch.full((5, 1), expert), torch.ones(5, 1))  # noqa: B023

        before = [run(target, expert) for expert in range(3)]
        target.store.put(1, source.store.expert(2))
        assert torch.equal(run(target, 1), run(source, 2)) and not torch.equal(before[1], before[2])
        assert all(torch.equal(run(target, expert), before[expert]) for expert in (0, 2))


@pytest.mark.row("F14.13")
def test_parts_and_compact_weights_move_too() -> None:
    """A weight whose rows come in two kinds; bfloat16 that is compact in one kernel alone."""
    x, weights = torch.randn(3, 256), [torch.randn(64, 256) for _ in range(4)]
    if CpuLinear.refuses(weights[0]) is not None:
        pytest.skip("the kernels cannot be built here")
    blocks = [Rounding(w, kind) for w, kind in zip(weights, ("int8", "int4") * 2, strict=True)]
    for first, second in (
        [CpuLinear.build(LinearSpec(blocks[at : at + 2], None, x)) for at in (0, 2)],
        [
            CpuLinear(w.bfloat16().contiguous(), None, compact=c)
            for w, c in zip(weights, (True, False), strict=False)
        ],
    ):
        assert first.layout == second.layout
        for one, other in ((first, second), (second, first)):
            given = x.to(one.out_dtype if isinstance(one, CpuLinear) else x.dtype)
            assert torch.equal(one.with_tensors(other.tensors())(given), other(given))


@pytest.mark.skipif(sys.platform != "linux", reason="other systems may keep pages")
def test_memory_of_an_expert_that_has_left_is_free() -> None:
    """Although its neighbours in the same tensor stay."""
    stacked = torch.ones(3, 256, 256)
    store = KernelStore({"up": [PlainLinear(weight, None) for weight in stacked]})
    store.put(1, {"up.weight": torch.full((256, 256), 2.0)})
    assert stacked[0].eq(1).all() and stacked[2].eq(1).all()
    assert not stacked[1, 10:246].any() and store.expert(1)["up.weight"].eq(2).all()


@pytest.mark.row("F14.13")
def test_what_cannot_be_exchanged_says_why() -> None:
    plain = [PlainLinear(torch.ones(2, width), None) for width in (3, 4)]
    assert KernelStore({"up": [*plain]}).refuses() == "they are stored in several ways in one layer"
    other: Any = object()
    assert KernelStore({"up": [other]}).refuses() == (
        "object multiplies them, and keeps its weights"
    )
    stacks = {"weight": torch.ones(2, 3), "bias": None}
    assert StackedStore(stacks, refusal="it is shared").refuses() == "it is shared"
    assert StackedStore(stacks).layout == "floats weight [3] torch.float32"
