"""Routing in C++ against its twin in torch; `layers/moe/routers` has the definition."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from baton_worker import spec
from baton_worker.kernels.moe.routing import CpuRouter, cpu_router
from baton_worker.layers.moe.routers import group_top_k, top_k

CPU = torch.device("cpu")
PLAIN = spec.Router(32, 4)
GROUPS = replace(PLAIN, score="sigmoid", num_groups=8, top_groups=3, group_width=2)


@pytest.mark.skipif(CpuRouter.refuses(PLAIN, CPU) is not None, reason="no C++ compiler here")
def test_equals_the_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = 3 * torch.randn(700, 32, generator=torch.Generator().manual_seed(0))
    logits[5, 7:19] = logits[5, 0]
    correction = torch.randn(32, generator=torch.Generator().manual_seed(1))
    for settings, choose in (
        (PLAIN, top_k.top_k),
        (replace(PLAIN, score="sqrt_softplus", norm=2.0, scale=2.5), top_k.top_k),
        (replace(GROUPS, norm=1.0, norm_floor=1e-20), top_k.top_k),
        (replace(PLAIN, score="sigmoid", by_logits=True), top_k.top_k),
        (replace(GROUPS, score="softmax", norm=1.0), group_top_k.each_group),
    ):
        each_group = choose is group_top_k.each_group
        settings = replace(settings, top_k=8) if each_group else settings
        kernel = CpuRouter(settings, each_group)
        for bias in (None, correction):
            experts, weights = kernel(logits, bias)
            with monkeypatch.context() as without:
                for module in (top_k, group_top_k):
                    without.setattr(module, "cpu_router", lambda *_, **__: None)
                wanted = choose(logits, settings, bias)
            assert torch.equal(experts, wanted.experts)
            torch.testing.assert_close(weights, wanted.weights, rtol=1e-6, atol=0)
            for some in (slice(3, 4), slice(100, 400)):
                assert torch.equal(kernel(logits[some], bias)[1], weights[some])
    nothing = kernel(torch.full((1, 32), torch.nan), None)[0]
    assert len({*nothing.flatten().tolist()}) == 8 and nothing.min() >= 0 and nothing.max() < 32


def test_other_routers_are_the_twins() -> None:
    assert cpu_router(PLAIN, torch.device("meta")) is None
    assert cpu_router(replace(PLAIN, norm=3.0), CPU) is None
