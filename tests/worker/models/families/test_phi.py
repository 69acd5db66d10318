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
