"""Gemma 1 to 3."""

from __future__ import annotations

from typing import Any

import pytest


def test_gemma_means_the_tanh_form_when_it_says_gelu(spec_of: Any) -> None:
    spec = spec_of("GemmaForCausalLM", hidden_act="gelu", num_key_value_heads=1)
    mixer, ffn = spec.layers[0]
    assert ffn.activation == "gelu_pytorch_tanh" and mixer.head_dim == 256
    assert spec.head.tied and spec.norm.offset == 1.0 and spec.embedding.scale == 8.0


def test_gemma2_defaults_are_those_of_its_class(spec_of: Any) -> None:
    spec = spec_of("Gemma2ForCausalLM", num_key_value_heads=4)
    assert [mixer.mask.window for mixer, _ in spec.layers] == [4096, None, 4096, None]
    assert (spec.layers[0][0].scores.softcap, spec.head.softcap) == (50.0, 30.0)
    assert spec.layers[0][0].scale == 1 / 16 and spec.style == "sandwich"


@pytest.mark.parametrize(
    "ropes",
    [
        {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": None},
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            }
        },
        {},
    ],
    ids=["older", "newer", "left out"],
)
def test_gemma3_has_a_rope_for_each_kind_of_layer(spec_of: Any, ropes: dict[str, Any]) -> None:
    spec = spec_of("Gemma3ForCausalLM", num_hidden_layers=7, sliding_window=16, **ropes)
    assert [mixer.mask.window for mixer, _ in spec.layers] == [16] * 5 + [None, 16]
    assert [mixer.rope.base for mixer, _ in spec.layers] == [1e4] * 5 + [1e6, 1e4]


def test_gemma3_scales_only_the_global_rope(spec_of: Any) -> None:
    scaling = {"rope_type": "linear", "factor": 8.0}
    spec = spec_of("Gemma3ForCausalLM", num_hidden_layers=6, rope_theta=1e6, rope_scaling=scaling)
    kinds = [mixer.rope.kind for mixer, _ in spec.layers]
    assert kinds == ["default"] * 5 + ["linear"]
    assert spec.layers[5][0].rope.base == 1e6 and spec.layers[0][0].rope.base == 1e4


def test_gemma3_reads_ropes_as_transformers_does(spec_of: Any) -> None:
    """A flat `rope_parameters` says nothing of either; `rope_scaling` is added to the nested."""
    flat = {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e4}}
    nested = {
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 5e5}},
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    }
    for fields, kind, base in ((flat, "default", 1e6), (nested, "linear", 5e5)):
        spec = spec_of("Gemma3ForCausalLM", num_hidden_layers=6, **fields)
        local, whole = spec.layers[0][0].rope, spec.layers[5][0].rope
        assert (whole.kind, whole.base) == (kind, base)
        assert (local.kind, local.base) == ("default", 1e4)
