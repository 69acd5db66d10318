"""Experts as one pair of products each."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from baton_worker.kernels.cpu.linear import CpuLinear
from baton_worker.kernels.moe.grouped import GroupedExperts
from tests.support.worker.expert_layers import experts


def test_four_bits_are_held_in_fewer_bytes() -> None:
    layer = experts(3, hidden=64, size=32)
    if CpuLinear.refuses(layer.down[0]) is not None:
        pytest.skip("the kernels cannot be built here")
    rounded = GroupedExperts(replace(layer, quantised_as="int4_minimum"))
    assert rounded.nbytes < GroupedExperts(layer).nbytes / 4


def test_experts_without_visits_run_no_product(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, ran = GroupedExperts(experts(3)), list[int]()
    for expert, product in enumerate(kernel._down):
        products = list(kernel._down)
        products[expert] = lambda x, e=expert, p=product: (ran.append(e), p(x))[1]
        monkeypatch.setattr(kernel, "_down", products)
    kernel(torch.randn(2, 10), torch.tensor([[0], [2]]), torch.ones(2, 1))
    assert ran == [0, 2]
