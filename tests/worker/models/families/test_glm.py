"""GLM and ChatGLM."""

from __future__ import annotations

from typing import Any

import pytest

from baton.errors import ModelError

CHATGLM = {
    "num_hidden_layers": None,
    "num_layers": 4,
    "ffn_hidden_size": 96,
    "kv_channels": 8,
    "seq_length": 512,
    "padded_vocab_size": 104,
    "layernorm_epsilon": 1e-6,
}
"""What a ChatGLM calls its sizes."""


def test_half_of_each_head_turns_channel_by_channel(spec_of: Any) -> None:
    spec = spec_of("Glm4ForCausalLM", num_key_value_heads=2)
    mixer, _ = spec.layers[0]
    assert mixer.head_dim == 128 and mixer.rope.dim == 64 and mixer.rope.interleaved
    assert mixer.projections.bias and not mixer.projections.output_bias and spec.style == "sandwich"


def test_glm_norms_before_each_half_only(spec_of: Any) -> None:
    assert spec_of("GlmForCausalLM").style == "pre"


def test_chatglm_under_its_own_names(spec_of: Any) -> None:
    spec = spec_of("ChatGLMModel", **CHATGLM)
    mixer, ffn = spec.layers[0]
    assert (len(spec.layers), ffn.intermediate, spec.vocab, spec.max_length) == (4, 96, 104, 512)
    assert (mixer.num_kv_heads, mixer.head_dim, mixer.rope.dim) == (8, 8, 4)
    assert spec.norm.eps == 1e-6 and mixer.rope.base == 10_000.0 and not mixer.projections.bias


def test_chatglm_may_share_keys_and_lengthen_its_base(spec_of: Any) -> None:
    fields = {"multi_query_attention": True, "multi_query_group_num": 2, "rope_ratio": 500}
    mixer, _ = spec_of("ChatGLMModel", **CHATGLM, **fields, add_qkv_bias=True).layers[0]
    assert (mixer.num_kv_heads, mixer.rope.base, mixer.projections.bias) == (2, 5e6, True)


def test_the_first_chatglm_is_refused(spec_of: Any) -> None:
    with pytest.raises(ModelError, match="Use ChatGLM2 or later"):
        spec_of("ChatGLMModel", position_encoding_2d=True)
