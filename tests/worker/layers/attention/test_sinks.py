"""Sinks against attention over longer keys."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from baton_worker import spec
from baton_worker.layers.attention.sinks import SinkKeys, Sinks
from baton_worker.layers.build_context import BuildContext

SETTINGS = spec.Attention(4, 2, 6, 0.5, None, sinks=spec.Sinks(3), values=spec.Values(4))


def attention(query: Tensor, key: Tensor, value: Tensor, more: Tensor) -> Tensor:
    """[T, heads, d], [keys, kv_heads, d]: every token sees all keys and `more` scores."""
    key, value = (t.repeat_interleave(2, dim=1) for t in (key, value))
    scores = torch.einsum("thd,khd->thk", query, key) * 0.5
    weights = torch.cat((scores, more), dim=-1).softmax(-1)[..., : len(key)]
    return torch.einsum("thk,khd->thd", weights, value)


def test_a_sink_is_one_score_per_head(context: BuildContext) -> None:
    layer = Sinks(replace(SETTINGS, sinks=spec.Sinks()), context)
    ((name, weight),) = layer.weight_targets()
    weight.data.copy_(torch.arange(4.0))
    assert name == "sinks"
    assert layer(torch.zeros(3, 4, 6), lambda scores: scores).tolist() == [0.0, 1.0, 2.0, 3.0]


def test_sink_keys_are_keys_that_everybody_sees(context: BuildContext) -> None:
    layer = SinkKeys(SETTINGS, context, None)
    for _, tensor in layer.weight_targets():
        tensor.data.normal_()
    query, key = torch.randn(5, 4, 6), torch.randn(7, 2, 6)
    value = torch.randn(7, 2, 4)
    marked = torch.cat((value, torch.ones(7, 2, 1), torch.zeros(7, 2, 1)), dim=-1)

    def attend(scores: Tensor) -> Tensor:
        return attention(query, key, marked, scores[..., None]).flatten(1)

    with torch.inference_mode():
        ours = layer(query, attend).view(5, 4, 6)[..., :4]
    both = torch.cat((layer.key, key)), torch.cat((layer.value, value))
    torch.testing.assert_close(ours, attention(query, *both, torch.zeros(5, 4, 0)))
