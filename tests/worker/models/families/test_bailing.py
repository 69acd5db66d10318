"""Ling 2.0."""

from __future__ import annotations

from typing import Any

import pytest

from baton.errors import ModelError

SIZES: Any = {"num_experts": 8, "moe_intermediate_size": 24, "num_experts_per_tok": 2}


def test_half_of_a_head_turns_and_biases_are_of_two_kinds(spec_of: Any) -> None:
    spec = spec_of("BailingMoeV2ForCausalLM", **SIZES, head_dim=16, use_qkv_bias=True)
    mixer, moe = spec.layers[0]
    assert mixer.rope.dim == 8 and mixer.projections.bias and not mixer.projections.output_bias
    assert moe.router.correction and moe.router.score == "sigmoid" and moe.shared is None


def test_a_normed_head_is_refused(spec_of: Any) -> None:
    with pytest.raises(ModelError, match="norm_head to false"):
        spec_of("BailingMoeV2ForCausalLM", **SIZES, norm_head=True)
