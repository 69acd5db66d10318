"""Choosing the kernel of experts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton.errors import ModelError
from baton_worker.kernels.moe.grouped import GroupedExperts
from baton_worker.kernels.moe.loop import LoopExperts
from baton_worker.kernels.moe.selector import ExpertKernelSelector
from tests.support.worker import packable_weights
from tests.support.worker.expert_layers import experts
from tests.support.worker.random_products import some_blocks


def test_a_kernel_may_be_named_and_then_it_is_this_one_or_none() -> None:
    assert isinstance(ExpertKernelSelector("eager").select(experts(2)), LoopExperts)
    with pytest.raises(ModelError, match="these experts: triton refused: it needs a GPU"):
        ExpertKernelSelector("deep_gemm").select(experts(2))
    assert isinstance(ExpertKernelSelector().select(experts(2)), GroupedExperts)


def test_the_first_kernel_that_does_not_refuse_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(ExpertKernelSelector().select(experts(2)), GroupedExperts)
    monkeypatch.setattr(GroupedExperts, "refuses", classmethod(lambda cls, e: "it is off"))
    assert isinstance(ExpertKernelSelector().select(experts(2)), LoopExperts)
    monkeypatch.setattr(LoopExperts, "refuses", classmethod(lambda cls, e: "so is it"))
    with pytest.raises(ModelError, match=r"for accelerators.*it is off.*so is it"):
        ExpertKernelSelector().select(experts(2))


def test_kernels_of_floats_refuse_packed_experts() -> None:
    layer = experts(2, hidden=32, size=32)
    packed = [(some_blocks("int8", 64, 32),), None]
    packed_layer = replace(layer, packed_gate_up=packed)
    with pytest.raises(ModelError, match="loop refused: it does not multiply with"):
        ExpertKernelSelector("eager").select(packed_layer)
    three, four = (packable_weights.gptq(bits, 32, 64, 32) for bits in (3, 4))
    takes = {name: ExpertKernelSelector(name).takes for name in ("auto", "deep_gemm", "eager")}
    assert takes["auto"](three) and takes["auto"](four)
    assert takes["deep_gemm"](four) and not takes["deep_gemm"](three)
    assert not takes["eager"](four)
