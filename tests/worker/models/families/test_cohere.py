"""Command R."""

from __future__ import annotations

from typing import Any


def test_defaults_are_those_of_its_class(spec_of: Any) -> None:
    spec = spec_of("CohereForCausalLM")
    mixer, _ = spec.layers[0]
    assert spec.head.tied and spec.head.scale == 0.0625 and spec.style == "parallel"
    assert mixer.rope.interleaved and mixer.rope.base == 500_000.0 and mixer.qk_norm is None
    assert spec.norm.kind == "layer" and not spec.norm.bias


def test_qk_norm_has_a_weight_for_each_head(spec_of: Any) -> None:
    mixer, _ = spec_of("CohereForCausalLM", use_qk_norm=True).layers[0]
    assert mixer.qk_norm is not None and mixer.qk_norm_over == "each"
