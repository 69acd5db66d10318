"""The router layer: its projection and the table of ways to choose."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from baton.errors import ModelError, SettingsError
from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.moe.router import Router
from baton_worker.layers.moe.routers import ROUTERS
from baton_worker.layers.moe.routers.base import Routing

PLAIN = spec.Router(num_experts=8, top_k=3)


@pytest.mark.row("F06.12")
def test_a_router_takes_any_kind_of_the_table_and_refuses_others(context: BuildContext) -> None:
    x = torch.randn(4, 6)
    for kind in ROUTERS.names():
        router = Router(replace(PLAIN, kind=kind), 6, context)
        for _, tensor in router.weight_targets():
            tensor.data.normal_()
        routing = router(x)
        assert routing.experts.shape == routing.weights.shape == (4, routing.experts.shape[1])
        assert routing.experts.max() < 8
    with pytest.raises(SettingsError, match="top_k"):
        Router(replace(PLAIN, kind="topk"), 6, context)
    with pytest.raises(ModelError, match="softmax"):
        Router(replace(PLAIN, score="hardmax"), 6, context)


@pytest.mark.parametrize("kind", ROUTERS.names())
def test_only_routers_of_single_tokens_are_captured(context: BuildContext, kind: str) -> None:
    """Padding is more tokens."""
    reason = Router(replace(PLAIN, kind=kind), 6, context).capture_blocker
    captured = kind in ("top_k", "each_group", "sparse_mixer")
    assert reason is None if captured else reason == f"the router {kind} may look at all tokens"


def test_logits_are_float32_whatever_the_layer_computes_in() -> None:
    context = BuildContext(torch.device("cpu"), torch.bfloat16, lambda role: role)
    router = Router(replace(PLAIN, bias=True, correction=True), 6, context)
    names = dict(router.weight_targets())
    assert set(names) == {"router.weight", "router.bias", "router_correction"}
    assert {tensor.dtype for tensor in names.values()} == {torch.float32}


def first_two(logits: torch.Tensor, settings: spec.Router, correction: object) -> Routing:
    """A router of someone else's."""
    experts = torch.arange(2).expand(logits.shape[0], 2)
    return Routing(experts, torch.full((logits.shape[0], 2), settings.scale))


@pytest.mark.row("F06.10")
def test_a_package_brings_its_own_router(
    context: BuildContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ROUTERS._targets, "first_two", f"{__name__}:first_two")
    router = Router(replace(PLAIN, kind="first_two", scale=0.25), 6, context)
    router.weight.data.normal_()
    routing = router(torch.randn(3, 6))
    assert routing.experts.tolist() == [[0, 1]] * 3 and (routing.weights == 0.25).all()
