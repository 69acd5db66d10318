"""Phi."""

from __future__ import annotations

from typing import Any


def test_phi_rotates_half_of_each_head_unless_told(spec_of: Any) -> None:
    assert spec_of("PhiForCausalLM").layers[0][0].rope.dim == 4
    assert spec_of("PhiForCausalLM", partial_rotary_factor=0.25).layers[0][0].rope.dim == 2
    assert spec_of("PhiForCausalLM").head.bias


def test_phi3_reads_older_long_scaling(spec_of: Any) -> None:
    """microsoft/Phi-3-mini-128k-instruct: "su", with the original length beside it."""
    factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    spec = spec_of(
        "Phi3ForCausalLM",
        original_max_position_embeddings=64,
        rope_scaling={"type": "su"} | factors,
        num_key_value_heads=8,
    )
    rope = spec.layers[0][0].rope
    assert rope.kind == "longrope" and dict(rope.parameters) == {
        "original_max_position_embeddings": 64,
        "served": 512,
        "short_factor": (1.0,) * 4,
        "long_factor": (2.0,) * 4,
    }


def test_phi_moe_has_factors_of_its_own_for_short_and_long_texts(spec_of: Any) -> None:
    ropes = {"type": "longrope", "short_mscale": 1.2, "long_mscale": 1.3}
    ropes |= {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    for original, factor in ((512, 1.2), (64, 1.3)):
        spec = spec_of(
            "PhiMoEForCausalLM",
            num_local_experts=4,
            rope_scaling=ropes,
            original_max_position_embeddings=original,
        )
        mixer, ffn = spec.layers[0]
        assert dict(mixer.rope.parameters)["attention_factor"] == factor
        assert (ffn.router.kind, ffn.router.top_k) == ("sparse_mixer", 2)
        assert dict(ffn.router.parameters) == {"jitter": 0.01}
