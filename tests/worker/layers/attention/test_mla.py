"""Latent attention against explicitly up-projected K and V."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from baton_worker import spec
from baton_worker.attention import AttentionBatch
from baton_worker.kv_cache.page_shapes import page_shapes
from baton_worker.layers.attention.mla import LatentAttention
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.forward_context import ForwardContext
from baton_worker.layers.layer import Layer
from baton_worker.layers.rope.rope import Rotary, rotate_

ROPE = spec.Rope(4, 100.0, 64)
SETTINGS = spec.LatentAttention(
    num_heads=3,
    kv_rank=10,
    nope_dim=6,
    rope_dim=4,
    value_dim=5,
    scale=0.4,
    rope=ROPE,
    norm=spec.Norm(1e-6),
    query_rank=7,
    bias=True,
)
CPU = torch.device("cpu")


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight


def expanded(x: Tensor, w: dict[str, Tensor], *, turns: bool = True) -> Tensor:
    """One text from its start, with keys and values of every head in full."""
    length, angles = len(x), Rotary(ROPE, CPU).angles(torch.arange(len(x)), torch.float32)
    low = norm(x @ w["query_down.weight"].T + w["query_down.bias"], w["query_down_norm.weight"])
    query = (low @ w["query_up.weight"].T).view(length, 3, 10)
    down = x @ w["kv_down.weight"].T + w["kv_down.bias"]
    up = norm(down[:, :10], w["kv_down_norm.weight"]) @ w["kv_up.weight"].T
    key_nope, value = up.view(length, 3, 11).split([6, 5], dim=-1)
    turned = torch.cat((query[..., 6:], down[:, None, 10:]), dim=1)
    if turns:
        rotate_(turned, angles)
    query = torch.cat((query[..., :6], turned[:, :3]), dim=-1)
    key = torch.cat((key_nope, turned[:, 3:].expand(-1, 3, -1)), dim=-1)
    scores = torch.einsum("qhd,khd->hqk", query, key) * 0.4
    scores = scores.masked_fill(~torch.ones(length, length).tril().bool(), float("-inf"))
    mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1), value).flatten(1)
    return mixed @ w["output.weight"].T + w["output.bias"]


@pytest.mark.parametrize("chunk", [1, 3, 11])
@pytest.mark.parametrize("rope", [ROPE, None], ids=["turned", "without positions"])
def test_absorbed_equals_expanded(
    context: BuildContext, chunk: int, rope: spec.Rope | None
) -> None:
    layer = LatentAttention(replace(SETTINGS, rope=rope), 8, context)
    weights = {
        name: rows.copy_(torch.randn(rows.shape)).clone()
        for part in layer.modules()
        if isinstance(part, Layer)
        for name, rows in part.weight_targets()
    }
    x, pages = torch.randn(11, 8), torch.zeros(3, 4, 1, 1, 14)
    rows = []
    for start in range(0, 11, chunk):
        new = x[start : start + chunk]
        batch = AttentionBatch.build([len(new)], [start], [[2, 0, 1]], 4, CPU)
        positions = torch.arange(start, start + len(new))
        angles = {ROPE: Rotary(ROPE, CPU).angles(positions, torch.float32)} if rope else {}
        step = ForwardContext(
            batch.slot_mapping, angles, {layer.call: layer.backend.plan(batch, layer.call)}
        )
        with torch.inference_mode():
            rows.append(layer(new, step, pages, None))
    expected = expanded(x, weights, turns=rope is not None)
    torch.testing.assert_close(torch.cat(rows), expected, atol=1e-4, rtol=1e-4)


def test_the_cache_holds_one_vector_per_token() -> None:
    decoder = spec.Decoder(8, 9, ((SETTINGS, None),), spec.Norm(1e-6), spec.Head())
    assert page_shapes(decoder, 16) == ((16, 1, 1, 14),)
