"""The attention layer writes the computed KV into the given pages."""

from __future__ import annotations

import torch

from baton_worker import spec
from baton_worker.attention import AttentionBatch
from baton_worker.layers.attention.gqa import Attention
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.forward_context import ForwardContext
from baton_worker.layers.layer import Layer
from baton_worker.layers.rope.rope import Rotary, rotate_


def test_keys_and_values_land_in_their_slots(context: BuildContext) -> None:
    rope = spec.Rope(dim=4, base=100.0, max_position=32)
    settings = spec.Attention(num_heads=4, num_kv_heads=2, head_dim=4, scale=0.5, rope=rope)
    layer, weights = Attention(settings, 8, context), {}
    for part in layer.modules():
        if isinstance(part, Layer):
            for name, rows in part.weight_targets():
                weights[name] = rows.copy_(torch.randn(rows.shape))
    batch = AttentionBatch.build([3], [0], [[2, 0]], 2, context.device)
    angles = Rotary(rope, context.device).angles(torch.arange(3), torch.float32)
    pages = torch.zeros(3, 2, 2, 2, 4)
    x = torch.randn(3, 8)
    with torch.inference_mode():
        step = ForwardContext(
            batch.slot_mapping, {rope: angles}, {layer.call: layer.backend.plan(batch, layer.call)}
        )
        layer(x, step, pages, None)
    key = (x @ weights["key.weight"].T).view(3, 2, 4)
    value = (x @ weights["value.weight"].T).view(3, 2, 4)
    rotate_(key, angles)
    written = torch.stack((pages[2, 0], pages[2, 1], pages[0, 0]))
    torch.testing.assert_close(written, torch.stack((key, value), 1))
    assert not pages[1].any() and not pages[0, 1].any()
