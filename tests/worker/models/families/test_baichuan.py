"""Baichuan 1 and 2, 7B and 13B, distinguished by their configs."""

from __future__ import annotations

from typing import Any


def test_the_first_7b_has_a_rope_and_a_plain_head(spec_of: Any) -> None:
    spec = spec_of("BaiChuanForCausalLM")
    assert spec.layers[0][0].rope is not None and not spec.head.unit_rows


def test_the_second_7b_has_a_norm_head(spec_of: Any) -> None:
    spec = spec_of("BaichuanForCausalLM", vocab_size=125_696, model_max_length=4096)
    assert spec.layers[0][0].rope is not None and spec.head.unit_rows


def test_13b_models_have_alibi(spec_of: Any) -> None:
    """Their configs name a `model_max_length` only."""
    fields = {"max_position_embeddings": None, "model_max_length": 4096}
    second = spec_of("BaichuanForCausalLM", vocab_size=125_696, **fields)
    first = spec_of("BaichuanForCausalLM", vocab_size=64_000, **fields)
    for spec, unit_rows in ((second, True), (first, False)):
        mixer, _ = spec.layers[0]
        assert mixer.rope is None and len(mixer.scores.slopes) == 8 and spec.max_length == 4096
        assert spec.head.unit_rows == unit_rows
