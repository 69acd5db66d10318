"""Multipliers."""

from __future__ import annotations

from typing import Any

import pytest


def test_granite_defaults_multiply_by_one(spec_of: Any) -> None:
    spec = spec_of("GraniteForCausalLM")
    assert (spec.embedding.scale, spec.residual_scale, spec.head.scale) == (1.0, 1.0, 1.0)
    assert spec.layers[0][0].scale == 1.0


def test_minicpm_scales_by_depth_and_width(spec_of: Any) -> None:
    spec = spec_of("MiniCPMForCausalLM", scale_emb=12, scale_depth=1.4, dim_model_base=16)
    assert spec.embedding.scale == 12.0 and spec.residual_scale == pytest.approx(0.7)
    assert spec.head.scale == 0.25 and spec.head.tied


def test_teleflm_without_mup_is_a_llama(spec_of: Any) -> None:
    assert spec_of("TeleFLMForCausalLM", use_mup=False) == spec_of("LlamaForCausalLM")


def test_every_fourth_layer_of_a_granite_with_windows_sees_all(spec_of: Any) -> None:
    for name in ("GraniteSWAForCausalLM", "GraniteMoeSWAForCausalLM"):
        spec = spec_of(name, layer_rope_theta=[0, 500.0, 1e4, 1e4])
        mixers = [mixer for mixer, _ in spec.layers]
        assert [mixer.mask.window for mixer in mixers] == [None, 128, 128, 128]
        assert mixers[0].rope is None and mixers[1].rope.base == 500.0
        assert all(mixer.sinks is not None and mixer.scale == 1.0 for mixer in mixers)
        expected = (False, 1e-6) if "Moe" in name else (True, 1e-5)
        assert (spec.head.tied, spec.norm.eps) == expected


def test_hyperclovax_multiplies_logits_and_norms_twice(spec_of: Any) -> None:
    spec = spec_of("HyperCLOVAXForCausalLM", logits_scaling=0.5)
    assert spec.head.scale == 0.5 and spec.style == "sandwich"
    mixer, _ = spec.layers[0]
    assert mixer.scale == pytest.approx(mixer.head_dim**-0.5)
