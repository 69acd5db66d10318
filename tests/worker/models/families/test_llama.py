"""Differences between Llama-like models."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from baton.errors import ModelError
from baton_worker.models import resolve
from baton_worker.spec import Mlp, QkNorm
from tests.support import tiny_models


def spec_of(architecture: str, **changes: Any) -> Any:
    text = tiny_models.tiny_config(architecture, **changes).to_json_string(use_diff=False)
    return resolve(json.loads(text, object_hook=lambda fields: SimpleNamespace(**fields)))


def test_llama_biases() -> None:
    mixer, ffn = spec_of("LlamaForCausalLM").layers[0]
    assert mixer.projections.bias and mixer.projections.output_bias and ffn.bias


def test_mistral_heads_and_window() -> None:
    mixer, _ = spec_of("MistralForCausalLM").layers[0]
    assert (mixer.head_dim, mixer.mask.window, mixer.projections.bias) == (16, 12, False)


@pytest.mark.parametrize("window", [None, 5])
def test_mistral_window_may_be_off(window: int | None) -> None:
    mixer, _ = spec_of("MistralForCausalLM", sliding_window=window).layers[0]
    assert mixer.mask.window == window


def test_qwen2_bias_is_on_the_inputs_only() -> None:
    spec = spec_of("Qwen2ForCausalLM")
    mixers = [mixer for mixer, _ in spec.layers]
    assert spec.head.tied and mixers[0].projections.bias and not mixers[0].projections.output_bias
    assert [mixer.mask.window for mixer in mixers] == [None, None, 9]


def test_qwen3_norms_each_head() -> None:
    spec = spec_of("Qwen3ForCausalLM")
    assert spec.layers[0][0].qk_norm == QkNorm(spec.norm)


def test_smollm3_rests_from_positions_every_fourth_layer() -> None:
    spec = spec_of("SmolLM3ForCausalLM")
    assert [mixer.rope is None for mixer, _ in spec.layers] == [False, False, False, True]
    assert spec.layers[0][0].rope.base == 2_000_000.0
    assert [mixer.mask.window for mixer, _ in spec.layers] == [None] * 4


def test_jais2_has_plain_feed_forwards_and_layer_norms() -> None:
    spec = spec_of("Jais2ForCausalLM")
    assert spec.layers[0][1] == Mlp(80, "relu2", bias=True)
    assert spec.norm.kind == "layer" and spec.norm.bias


def test_internlm_may_have_a_base_in_an_object_of_its_own(spec_of: Any) -> None:
    rotary = {"base": 500.0, "type": "dynamic"}
    mixer, _ = spec_of("InternLMForCausalLM", rotary=rotary, bias=False).layers[0]
    assert mixer.rope.base == 500.0 and not mixer.projections.bias
    assert spec_of("InternLMForCausalLM").layers[0][0].projections.output_bias


def test_a_qwen_with_an_encoder_is_another_architecture(spec_of: Any) -> None:
    with pytest.raises(ModelError, match="QwenVLForConditionalGeneration"):
        spec_of("QWenLMHeadModel", visual={})
