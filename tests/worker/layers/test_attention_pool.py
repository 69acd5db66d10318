"""One vector of many states, against torch's own attention."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from baton_worker import spec
from baton_worker.layers.attention_pool import AttentionPool
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.layer import Layer
from baton_worker.models.families.clip import _POOL
from baton_worker.spec.names import Names

PREFIX = "vision_model.head."


def test_against_multihead_attention() -> None:
    torch.manual_seed(0)
    names = tuple(_POOL.items())
    mlp = spec.Mlp(12, "relu", bias=True)
    settings = spec.AttentionPool(4, spec.Norm(1e-6, "layer", bias=True), mlp, names)
    pool = AttentionPool(
        settings, 8, BuildContext(torch.device("cpu"), torch.float32, Names(names))
    )
    tensors = {}
    for layer in pool.modules():
        if isinstance(layer, Layer):
            for name, place in layer.weight_targets():
                tensors[name.removeprefix(PREFIX)] = torch.randn(place.shape)
                place.copy_(tensors[name.removeprefix(PREFIX)])
            layer.process_weights_after_loading()
    states = torch.randn(3, 7, 8)
    expected = plain(tensors, states)
    torch.testing.assert_close(pool(states), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(pool(states[1:2])[0], expected[1], atol=1e-5, rtol=1e-5)


def plain(tensors: dict[str, torch.Tensor], states: torch.Tensor) -> torch.Tensor:
    attention = torch.nn.MultiheadAttention(8, 4, batch_first=True)
    inside = {k.removeprefix("attention."): v for k, v in tensors.items() if "attention." in k}
    attention.load_state_dict(inside)
    x = attention(tensors["probe"].expand(3, -1, -1), states, states)[0].detach()[:, 0]
    normed = F.layer_norm(x, (8,), tensors["layernorm.weight"], tensors["layernorm.bias"], 1e-6)
    up = F.relu(F.linear(normed, tensors["mlp.fc1.weight"], tensors["mlp.fc1.bias"]))
    return x + F.linear(up, tensors["mlp.fc2.weight"], tensors["mlp.fc2.bias"])
