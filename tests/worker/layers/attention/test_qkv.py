"""Projections to heads against their formulas."""

from __future__ import annotations

from dataclasses import replace

import torch

from baton_worker import spec
from baton_worker.layers.attention.qkv import (
    HeadGate,
    LowRankQuery,
    PaddedValue,
    projection,
)
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.layer import Layer
from baton_worker.layers.linear import Linear

PLAIN = spec.Attention(4, 2, 6, 0.5, None)


def filled(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    layers = [part for part in module.modules() if isinstance(part, Layer)]
    return {
        name: rows.copy_(torch.randn(rows.shape)).clone()
        for layer in layers
        for name, rows in layer.weight_targets()
    }


def test_plain_heads_are_one_product(context: BuildContext) -> None:
    assert isinstance(projection(PLAIN, 8, context), Linear)


def test_narrow_values_are_scaled_and_padded(context: BuildContext) -> None:
    layer = projection(replace(PLAIN, values=spec.Values(4, scale=0.5)), 8, context)
    assert isinstance(layer, PaddedValue)
    weights, x = filled(layer), torch.randn(3, 8)
    heads = layer(x).view(3, 8, 6)
    torch.testing.assert_close(heads[:, :4].flatten(1), x @ weights["query.weight"].T)
    torch.testing.assert_close(heads[:, 4:6].flatten(1), x @ weights["key.weight"].T)
    value = 0.5 * x @ weights["value.weight"].T
    torch.testing.assert_close(heads[:, 6:, :4].flatten(1), value)
    assert (heads[:, 6:, 4:] == 0).all()


def test_before_sink_keys_the_first_padded_channel_is_one(context: BuildContext) -> None:
    layer = projection(replace(PLAIN, values=spec.Values(4), sinks=spec.Sinks(2)), 8, context)
    filled(layer)
    heads = layer(torch.randn(3, 8)).view(3, 8, 6)
    assert (heads[:, 6:, 4] == 1).all() and (heads[:, 6:, 5] == 0).all()


def test_low_rank_queries_are_normed_in_between(context: BuildContext) -> None:
    norm = spec.Norm(1e-5)
    layer = projection(
        replace(PLAIN, projections=spec.Projections(query=spec.LowRank(5, norm))), 8, context
    )
    assert isinstance(layer, LowRankQuery)
    weights, x = filled(layer), torch.randn(3, 8)
    narrow = x @ weights["query_narrow.weight"].T
    narrow = narrow * (narrow.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    query = narrow * weights["query_narrow_norm.weight"] @ weights["query.weight"].T
    torch.testing.assert_close(layer(x)[:, :24], query)
    torch.testing.assert_close(layer(x)[:, 24:36], x @ weights["key.weight"].T)


def test_the_gate_is_per_head_or_per_channel(context: BuildContext) -> None:
    x, attended = torch.randn(3, 8), torch.randn(3, 24)
    for kind, width in (("head", 1), ("channel", 6)):
        layer = HeadGate(replace(PLAIN, gate=spec.OutputGate(kind)), 8, context)
        weight = filled(layer)["attention_gate.weight"]
        gate = (x @ weight.T).sigmoid().view(3, 4, width)
        expected = (attended.view(3, 4, 6) * gate).flatten(1)
        torch.testing.assert_close(layer(attended, x), expected)


def test_the_projection_of_the_gate_may_have_a_bias(context: BuildContext) -> None:
    x, attended = torch.randn(3, 8), torch.randn(3, 24)
    layer = HeadGate(replace(PLAIN, gate=spec.OutputGate("channel", bias=True)), 8, context)
    weights = filled(layer)
    gate = (x @ weights["attention_gate.weight"].T + weights["attention_gate.bias"]).sigmoid()
    torch.testing.assert_close(layer(attended, x), attended * gate)
