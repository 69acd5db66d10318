"""Mixtures with windows."""

from __future__ import annotations

from typing import Any


def test_mellum_sees_everything_unless_told_otherwise(spec_of: Any) -> None:
    sizes: Any = {"num_experts": 8, "moe_intermediate_size": 24, "num_experts_per_tok": 2}
    spec = spec_of("MellumForCausalLM", **sizes)
    mixer, ffn = spec.layers[0]
    assert mixer.mask.window is None and mixer.rope.base == 500_000.0 and mixer.head_dim == 128
    assert ffn.router.norm == 1.0 and ffn.shared is None
    slides = spec_of("MellumForCausalLM", **sizes, layer_types=["sliding_attention"] * 4)
    assert {mixer.mask.window for mixer, _ in slides.layers} == {1024}
    assert {mixer.rope.base for mixer, _ in slides.layers} == {10_000.0}


def test_laguna_turns_half_of_a_head_where_nothing_slides(spec_of: Any) -> None:
    sizes: Any = {"num_experts": 8, "moe_intermediate_size": 24, "num_experts_per_tok": 2}
    kinds = ["full_attention", "sliding_attention"] * 2
    spec = spec_of("LagunaForCausalLM", **sizes, layer_types=kinds)
    mixers = [mixer for mixer, _ in spec.layers]
    assert [mixer.rope.dim for mixer in mixers] == [64, 128] * 2
    assert [mixer.mask.window for mixer in mixers] == [None, 512] * 2
    assert (mixers[0].gate.per, mixers[0].gate.function) == ("head", "softplus")
    moe = spec.layers[1][1]
    assert moe.router.correction and moe.router.softcap is None and moe.shared.intermediate == 512


def test_flint_has_positions_in_windows_only(spec_of: Any) -> None:
    sizes: Any = {"num_experts": 8, "moe_intermediate_size": 24, "num_experts_per_tok": 2}
    spec = spec_of("FlintForCausalLM", **sizes)
    seen = [(mixer.mask.window, mixer.rope is not None) for mixer, _ in spec.layers]
    assert seen == [(None, False)] * 2 + [(513, True), (None, False)]
    assert [hasattr(ffn, "router") for _, ffn in spec.layers] == [False, False, True, True]
    assert spec.layers[2][1].router.norm == 1.0 and spec.layers[0][0].sinks is not None


def test_kolibri_chooses_experts_by_logits(spec_of: Any) -> None:
    sizes: Any = {"num_experts": 8, "moe_intermediate_size": 24, "num_experts_per_tok": 2}
    mixer, moe = spec_of("Kolibri1ForCausalLM", **sizes).layers[0]
    assert moe.router.by_logits and moe.router.correction and moe.router.norm is None
    assert mixer.mask.window == 513 and moe.shared.intermediate == 512
