"""Experts without gates, against one token at a time."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from baton_worker import spec
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.moe.megablocks import MegablocksExperts

SITE = BuildContext(torch.device("cpu"), torch.float32, lambda role: role)


def test_tokens_visit_the_experts_that_the_router_prefers() -> None:
    generator = torch.Generator().manual_seed(0)
    layer = MegablocksExperts(spec.MegablocksExperts(5, 2, 6), 4, SITE)
    for parameter in layer.parameters():
        parameter.data.normal_(generator=generator)
    x, residual = torch.randn(2, 7, 4, generator=generator)
    router = dict(layer.router.weight_targets())["router.weight"]
    up, down = layer.experts.up.view(5, 6, 4), layer.experts.down.view(5, 6, 4)
    rows = []
    for token in x:
        weights = (router @ token).softmax(-1)
        best = weights.topk(2).indices.tolist()
        outs = [weights[e] * (F.gelu(up[e] @ token) @ down[e]) for e in best]
        rows.append(sum(outs, layer.experts.bias))
    expected = torch.stack(rows)
    assert torch.allclose(layer(x, None), expected, atol=1e-5)
    assert torch.allclose(layer(x, residual), residual + expected, atol=1e-5)


def test_names() -> None:
    layer = MegablocksExperts(spec.MegablocksExperts(2, 1, 3), 4, SITE)
    assert [name for name, _ in layer.experts.weight_targets()] == [
        "experts.mlp.w1",
        "experts.mlp.w2",
        "experts.bias",
    ]
