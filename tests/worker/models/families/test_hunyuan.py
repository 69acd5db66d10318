"""HunYuan mixtures."""

from __future__ import annotations

import re
from typing import Any

from baton_worker.spec import (
    Moe,
)
from tests.support.moe_configs import spec


def test_layers_may_differ_in_experts_and_top_k() -> None:
    decoder = spec("HunYuanMoEV1ForCausalLM", num_experts=[2, 4, 4, 8], moe_topk=[1, 2, 2, 3])
    routers = [ffn.router for _, ffn in decoder.layers if isinstance(ffn, Moe)]
    assert [(r.num_experts, r.top_k) for r in routers] == [(2, 1), (4, 2), (4, 2), (8, 3)]


def test_hunyuan_3_is_dense_in_its_first_layer(spec_of: Any) -> None:
    """By the names of its published tensors."""
    spec = spec_of(
        "HYV3ForCausalLM", num_experts=8, num_experts_per_tok=2, moe_intermediate_size=24
    )
    kinds = [type(ffn).__name__ for _, ffn in spec.layers]
    assert kinds == ["Glu", "Moe", "Moe", "Moe"]
    router, mixer = spec.layers[1][1].router, spec.layers[1][0]
    assert (router.score, router.scale, router.norm) == ("sigmoid", 2.826, 1.0)
    assert (mixer.head_dim, mixer.rope.base) == (128, 11_158_840.0)
    name = "model.layers.1.mlp.router.gate.weight"
    for pattern, to in spec.tensors.renames:
        name = re.sub(pattern, to, name)
    assert name == "model.layers.1.mlp.gate.weight"
