"""Keys and values of one layer in the attention of another."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from baton_worker import spec
from baton_worker.attention import AttentionBatch
from baton_worker.layers.attention.cross_layer import KVSharingSource, KVSharingTarget
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.forward_context import ForwardContext
from baton_worker.layers.layer import Layer
from baton_worker.layers.rope.rope import Rotary, rotate_

CPU = torch.device("cpu")
ROPE = spec.Rope(6, 100.0, 64)
FIELDS: dict[str, Any] = {
    **{"num_heads": 4, "num_kv_heads": 2, "head_dim": 6, "scale": 0.4, "rope": ROPE},
    "qk_norm": spec.QkNorm(spec.Norm(1e-6), after_rope=True),
    "projections": spec.Projections(bias=True),
}
SOURCE, TARGET = spec.KVSharingSource(**FIELDS), spec.KVSharingTarget(**FIELDS)


def filled(layer: torch.nn.Module) -> dict[str, Tensor]:
    return {
        name: rows.copy_(torch.randn(rows.shape)).clone()
        for part in layer.modules()
        if isinstance(part, Layer)
        for name, rows in part.weight_targets()
    }


def heads(x: Tensor, w: dict[str, Tensor], role: str, *, turned: bool = False) -> Tensor:
    rows = (x @ w[f"{role}.weight"].T + w[f"{role}.bias"]).view(len(x), -1, 6)
    if turned:
        rotate_(rows, Rotary(ROPE, CPU).angles(torch.arange(len(x)), torch.float32))
    return rows


def norm(rows: Tensor, weight: Tensor) -> Tensor:
    return rows * (rows.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight


def attention(query: Tensor, key: Tensor, value: Tensor, w: dict[str, Tensor]) -> Tensor:
    query, key = norm(query, w["query_norm.weight"]), norm(key, w["key_norm.weight"])
    key, value = key.repeat_interleave(2, 1), value.repeat_interleave(2, 1)
    scores = torch.einsum("qhd,khd->hqk", query, key) * 0.4
    seen = torch.ones(len(query), len(query)).tril().bool()
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, value).flatten(1) @ w["output.weight"].T


@pytest.mark.parametrize("chunk", [1, 4, 11])
def test_a_layer_norms_the_keys_of_another_with_its_own_weight(
    context: BuildContext, chunk: int
) -> None:
    source, target = KVSharingSource(SOURCE, 8, context), KVSharingTarget(TARGET, 8, context)
    first, second = filled(source), filled(target)
    assert "key.weight" in first and "key.weight" not in second
    x, y = torch.randn(11, 8), torch.randn(11, 8)
    pages = [torch.zeros(3, 4, 2, 2, 6) for _ in range(2)]
    ours: tuple[list[Tensor], list[Tensor]] = ([], [])
    for start in range(0, 11, chunk):
        here = slice(start, min(start + chunk, 11))
        count = here.stop - start
        batch = AttentionBatch.build([count], [start], [[2, 0, 1]], 4, CPU)
        positions = torch.arange(start, here.stop)
        angles = {ROPE: Rotary(ROPE, CPU).angles(positions, torch.float32)}
        step = ForwardContext(
            batch.slot_mapping, angles, {source.call: source.backend.plan(batch, source.call)}
        )
        with torch.inference_mode():
            ours[0].append(source(x[here], step, pages[0], None))
            ours[1].append(target(y[here], step, pages[1], None))
    key, value = heads(x, first, "key", turned=True), heads(x, first, "value")
    for rows, given, w in ((ours[0], x, first), (ours[1], y, second)):
        expected = attention(heads(given, w, "query", turned=True), key, value, w)
        torch.testing.assert_close(torch.cat(rows), expected, atol=1e-4, rtol=1e-4)
