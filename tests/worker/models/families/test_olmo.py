"""OLMo."""

from __future__ import annotations

from typing import Any


def test_olmo_norms_have_no_parameters(spec_of: Any) -> None:
    spec = spec_of("OlmoForCausalLM", clip_qkv=8.0)
    assert spec.norm.kind == "layer" and not spec.norm.scaled and not spec.norm.bias
    assert spec.layers[0][0].projections.clip == 8.0


def test_olmo2_norms_the_full_width_and_after_each_half(spec_of: Any) -> None:
    spec = spec_of("Olmo2ForCausalLM")
    assert spec.style == "post" and spec.layers[0][0].qk_norm.over == "full"
    assert spec.norm.eps == 1e-5
