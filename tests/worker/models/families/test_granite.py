"""Granite mixtures: multipliers, and names that hold all experts of a layer."""

from __future__ import annotations

from baton_worker.spec import Attention, Glu, Moe
from tests.support.moe_configs import spec

MULTIPLIERS = {
    "num_local_experts": 8,
    "attention_multiplier": 0.25,
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.5,
    "logits_scaling": 4.0,
}


def test_every_multiplier_has_its_place() -> None:
    decoder = spec("GraniteMoeForCausalLM", **MULTIPLIERS)
    mixer, _ = decoder.layers[0]
    assert isinstance(mixer, Attention) and mixer.scale == 0.25
    assert decoder.embedding.scale == 12.0 and decoder.residual_scale == 0.5
    assert decoder.head.scale == 0.25


def test_the_shared_expert_has_a_size_of_its_own() -> None:
    _, ffn = spec("GraniteMoeForCausalLM", **MULTIPLIERS).layers[0]
    assert isinstance(ffn, Moe) and ffn.shared is None
    _, ffn = spec("GraniteMoeSharedForCausalLM", **MULTIPLIERS, shared_intermediate_size=32).layers[
        0
    ]
    assert isinstance(ffn, Moe) and ffn.shared == Glu(32)
