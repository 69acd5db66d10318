"""Mixtures of experts against a loop over tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from baton_worker import spec
from baton_worker.kernels.cpu import library
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.layer import Layer
from baton_worker.layers.moe.moe import Experts, Moe, watch
from baton_worker.layers.moe.routers.base import Routing

ROUTER = spec.Router(num_experts=5, top_k=2, norm=1.0)
GLU = spec.Glu(6)


def named(role: str) -> str:
    return f"{role}.{{expert}}" if role.startswith("expert_") else role


@pytest.fixture
def place() -> BuildContext:
    return BuildContext(torch.device("cpu"), torch.float32, named)


def filled(layer: torch.nn.Module) -> dict[str, Tensor]:
    """Random weights by name; the layer is ready."""
    parts = [part for part in layer.modules() if isinstance(part, Layer)]
    weights = {
        name: rows.copy_(torch.randn(rows.shape)).clone()
        for part in parts
        for name, rows in part.weight_targets()
    }
    for part in parts:
        part.process_weights_after_loading()
    return weights


def glu(x: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    gate, up, down = (weights[f"{name.format(part)}.weight"] for part in ("gate", "up", "down"))
    return F.silu(x @ gate.T) * (x @ up.T) @ down.T


def by_token(x: Tensor, routing: Routing, weights: dict[str, Tensor]) -> Iterator[Tensor]:
    for token, experts, shares in zip(x, routing.experts, routing.weights, strict=True):
        yield sum(
            share * glu(token, weights, f"expert_{{}}.{expert}")
            for expert, share in zip(experts.tolist(), shares, strict=True)
        )


@pytest.mark.row("F06.01", "F06.03")
@pytest.mark.parametrize("shared", [None, GLU, replace(GLU, intermediate=9)])
def test_routed_and_shared_experts_are_added_to_the_stream(
    place: BuildContext, shared: spec.Glu | None
) -> None:
    layer = Moe(spec.Moe(ROUTER, GLU, shared=shared), 4, place)
    weights, x, stream = filled(layer), torch.randn(7, 4), torch.randn(7, 4)
    with torch.inference_mode():
        expected = torch.stack(list(by_token(x, layer.router(x), weights)))
        if shared is not None:
            expected += glu(x, weights, "shared_{}")
        torch.testing.assert_close(layer(x, None), expected)
        torch.testing.assert_close(layer(x, stream), stream + expected)


@pytest.mark.row("F06.03")
def test_a_shared_expert_may_have_a_gate(place: BuildContext) -> None:
    layer = Moe(spec.Moe(ROUTER, GLU, shared=GLU, shared_gate=True), 4, place)
    weights, x = filled(layer), torch.randn(7, 4)
    with torch.inference_mode():
        routed = torch.stack(list(by_token(x, layer.router(x), weights)))
        gate = (x @ weights["shared_expert_gate.weight"].T).sigmoid()
        torch.testing.assert_close(layer(x, None), routed + gate * glu(x, weights, "shared_{}"))


def test_weights_may_apply_to_what_an_expert_is_given(place: BuildContext) -> None:
    layer = Moe(spec.Moe(ROUTER, GLU, weigh_input=True), 4, place)
    weights, x = filled(layer), torch.randn(7, 4)
    with torch.inference_mode():
        routing, rows = layer.router(x), []
        for token, experts, shares in zip(x, *routing, strict=True):
            pairs = zip(experts.tolist(), shares, strict=True)
            rows.append(sum(glu(token * s, weights, f"expert_{{}}.{e}") for e, s in pairs))
        torch.testing.assert_close(layer(x, None), torch.stack(rows))


@pytest.mark.row("F06.19")
def test_of_the_parts_of_a_mixture_one_returns_the_tokens_of_zero_experts(
    place: BuildContext,
) -> None:
    router = replace(ROUTER, num_experts=1, zero_experts=1, top_k=1)
    x, everyone = torch.randn(3, 8), torch.ones(3, 1)
    nobody = Routing(torch.ones(3, 1, dtype=torch.int64), everyone)
    for passes in (True, False):
        experts = Experts(spec.Moe(router, GLU, passes=passes), 8, place)
        filled(experts)
        torch.testing.assert_close(experts(x, nobody), x * passes)


def test_zero_experts_return_the_token_and_are_never_computed(place: BuildContext) -> None:
    router = replace(ROUTER, zero_experts=3, top_k=3)
    layer = Moe(spec.Moe(router, GLU), 4, place)
    weights, x = filled(layer), torch.randn(40, 4)
    assert weights["router.weight"].shape == (8, 4) and len(weights) == 1 + 3 * 5
    with torch.inference_mode():
        routing = layer.router(x)
        assert (routing.experts >= 5).any() and (routing.experts < 5).any()
        kept = routing.experts >= 5
        real = Routing(routing.experts.clamp(max=4), routing.weights * ~kept)
        rest = (routing.weights * kept).sum(-1, keepdim=True)
        expected = torch.stack(list(by_token(x, real, weights))) + rest * x
        torch.testing.assert_close(layer(x, None), expected)


def test_a_token_gets_the_same_bits_beside_any_others(place: BuildContext) -> None:
    if library("linear") is None:
        pytest.skip("the CPU kernels cannot be built here: other products depend on the batch")
    glu_, router = spec.Glu(48), replace(ROUTER, num_experts=16, top_k=3)
    layer = Moe(spec.Moe(router, glu_, shared=glu_, shared_gate=True), 32, place)
    filled(layer)
    x = torch.randn(50, 32)
    with torch.inference_mode():
        together = layer(x, None)
        for token in range(50):
            assert torch.equal(layer(x[token : token + 1], None), together[token : token + 1])


@pytest.mark.row("F06.29")
def test_the_use_of_experts_can_be_watched(place: BuildContext) -> None:
    layers = torch.nn.ModuleList(Moe(spec.Moe(ROUTER, GLU), 4, place) for _ in range(2))
    filled(layers)
    load, x = watch(layers, window=4), torch.randn(9, 4)
    assert load is not None and watch(torch.nn.Linear(2, 2), 4) is None
    with torch.inference_mode():
        layers[1](x, None)
        experts = layers[1].router(x).experts
    load.close_step()
    assert load.counts(0).tolist() == [0] * 5
    assert load.counts(1).tolist() == (2 * experts.flatten().bincount(minlength=5)).tolist()


def test_experts_may_have_biases(place: BuildContext) -> None:
    layer = Experts(spec.Moe(ROUTER, replace(GLU, bias=True)), 4, place)
    weights, x = filled(layer), torch.randn(3, 4)
    routing = Routing(torch.tensor([[0], [4], [4]]), torch.ones(3, 1))
    with torch.inference_mode():
        ours = layer(x, routing)
    for token, expert in enumerate((0, 4, 4)):
        gate, up, down = (
            lambda y, part=part, e=expert: F.linear(
                y, weights[f"expert_{part}.{e}.weight"], weights[f"expert_{part}.{e}.bias"]
            )
            for part in ("gate", "up", "down")
        )
        expected = down(F.silu(gate(x[token])) * up(x[token]))
        torch.testing.assert_close(ours[token], expected)
