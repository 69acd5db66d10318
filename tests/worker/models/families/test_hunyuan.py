"""HunYuan mixtures."""

from __future__ import annotations

from baton_worker.spec import (
    Moe,
)
from tests.support.moe_configs import spec


def test_layers_may_differ_in_experts_and_top_k() -> None:
    decoder = spec("HunYuanMoEV1ForCausalLM", num_experts=[2, 4, 4, 8], moe_topk=[1, 2, 2, 3])
    routers = [ffn.router for _, ffn in decoder.layers if isinstance(ffn, Moe)]
    assert [(r.num_experts, r.top_k) for r in routers] == [(2, 1), (4, 2), (4, 2), (8, 3)]
