"""Command R."""

from __future__ import annotations

from typing import Any

import pytest

from baton.errors import ModelError


def test_defaults_are_those_of_its_class(spec_of: Any) -> None:
    spec = spec_of("CohereForCausalLM")
    mixer, _ = spec.layers[0]
    assert spec.head.tied and spec.head.scale == 0.0625 and spec.style == "parallel"
    assert mixer.rope.interleaved and mixer.rope.base == 500_000.0 and mixer.qk_norm is None
    assert spec.norm.kind == "layer" and not spec.norm.bias


def test_cohere2_knows_positions_in_windows_only(spec_of: Any) -> None:
    spec = spec_of("Cohere2ForCausalLM", logit_scale=0.5)
    seen = [(mixer.mask.window, mixer.rope is not None) for mixer, _ in spec.layers]
    assert seen == [(4096, True)] * 3 + [(None, False)]
    assert spec.layers[0][0].rope.interleaved and spec.head.scale == 0.5


def test_cohere2_may_see_everything_more_often(spec_of: Any) -> None:
    spec = spec_of("Cohere2ForCausalLM", sliding_window_pattern=2)
    assert [mixer.mask.window for mixer, _ in spec.layers] == [4096, None, 4096, None]


def test_qk_norm_has_a_weight_for_each_head(spec_of: Any) -> None:
    mixer, _ = spec_of("CohereForCausalLM", use_qk_norm=True).layers[0]
    assert mixer.qk_norm is not None and mixer.qk_norm.over == "each"


def test_experts_of_command_a_and_their_shared_one_are_averaged(spec_of: Any) -> None:
    spec = spec_of("Cohere2MoeForCausalLM", num_experts=8, num_shared_experts=1)
    assert {ffn.scale for _, ffn in spec.layers} == {0.5}
    assert spec.layers[0][1].router.top_k == 2 and spec.layers[0][0].head_dim == 128
    with pytest.raises(ModelError, match="average, sum"):
        spec_of(
            "Cohere2MoeForCausalLM",
            num_experts=8,
            num_shared_experts=1,
            shared_expert_combination_strategy="product",
        )
