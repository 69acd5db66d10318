"""GPT-2 and its heirs, as the hub spells them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import transformers

from baton.errors import ModelError
from baton_worker.spec import Embedding, Positions


def test_gpt2_spells_its_sizes_in_its_own_way(spec_of: Any) -> None:
    spec = spec_of(
        "GPT2LMHeadModel",
        **dict.fromkeys(("hidden_size", "num_hidden_layers", "num_attention_heads")),
        max_position_embeddings=None,
        n_embd=64,
        n_layer=3,
        n_head=4,
        n_positions=128,
    )
    mixer, ffn = spec.layers[0]
    assert (spec.hidden, len(spec.layers), spec.max_length) == (64, 3, 128)
    assert mixer.num_heads == 4 and mixer.rope is None and ffn.intermediate == 256
    assert spec.embedding.positions.size == 128 and spec.head.tied


def test_neox_has_names_of_its_own_for_the_rope(spec_of: Any) -> None:
    """`rope_theta` and `partial_rotary_factor` are none, outside of the rope's parameters."""
    spec = spec_of("GPTNeoXForCausalLM", rotary_pct=0.5, rotary_emb_base=500)
    rope = spec.layers[0][0].rope
    assert (rope.dim, rope.base) == (4, 500.0) and spec.style == "parallel_two_norms"
    assert spec_of("GPTNeoXForCausalLM", use_parallel_residual=False).style == "pre"
    linear = {"rope_type": "linear", "factor": 2.0}
    for fields in (
        {"rope_theta": 5000.0},
        {"rope_theta": 5000.0, "partial_rotary_factor": 0.5},
        {"rope_theta": 5000.0, "rope_scaling": linear},
        {"rope_theta": 5000.0, "rope_scaling": linear, "rotary_emb_base": 700, "rotary_pct": 0.5},
        {"rotary_emb_base": 700, "rope_scaling": linear | {"rope_theta": 600.0}},
    ):
        sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}
        theirs = transformers.GPTNeoXConfig(**sizes, **copy.deepcopy(fields)).rope_parameters
        rope = spec_of("GPTNeoXForCausalLM", **sizes, **fields).layers[0][0].rope
        assert rope.base == theirs["rope_theta"], fields
        assert rope.dim == int(16 * theirs["partial_rotary_factor"]), fields


@pytest.mark.row("F23.07")
@pytest.mark.parametrize("before", [True, False])
def test_opt_places_its_norms_on_either_side(spec_of: Any, before: bool) -> None:
    spec = spec_of("OPTForCausalLM", ffn_dim=96, do_layer_norm_before=before)
    assert spec.style == ("pre" if before else "after") and spec.final_norm == before
    assert (spec.embedding.positions.size, spec.embedding.positions.offset) == (514, 2)


def test_bloom_of_the_hub(spec_of: Any) -> None:
    """bigscience/bloom-560m: `n_embed`, `n_layer`, and no longest sequence but `seq_length`."""
    spec = spec_of(
        "BloomForCausalLM",
        hidden_size=None,
        max_position_embeddings=None,
        n_embed=64,
        n_layer=2,
        seq_length=2048,
    )
    assert (spec.hidden, len(spec.layers), spec.max_length) == (64, 2, 2048)
    assert spec.layers[0][0].scores.slopes[0] == 0.5 and spec.tensors.fused[0].groups == 8


@pytest.mark.parametrize(
    ("fields", "kv_heads", "style"),
    [
        ({}, 1, "parallel"),
        ({"multi_query": False}, 8, "parallel"),
        ({"new_decoder_architecture": True, "num_kv_heads": 2}, 2, "parallel_two_norms"),
        ({"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1}, 8, "parallel"),
        ({"parallel_attn": False}, 1, "pre"),
        ({"new_decoder_architecture": True, "n_head_kv": 4}, 4, "parallel_two_norms"),
    ],
)
def test_falcons_differ_in_key_heads_and_norms(
    spec_of: Any, fields: dict[str, Any], kv_heads: int, style: str
) -> None:
    spec = spec_of("FalconForCausalLM", **fields)
    assert (spec.layers[0][0].num_kv_heads, spec.style) == (kv_heads, style)
    assert spec.tensors.fused[0].groups == kv_heads


def test_falcon_divides_alibi_like_its_scores(spec_of: Any) -> None:
    mixer, _ = spec_of("FalconForCausalLM", alibi=True).layers[0]
    assert mixer.rope is None and mixer.scores.slopes[0] == 0.5 * 8**-0.5


def test_mpt_reads_its_nested_attention(spec_of: Any) -> None:
    spec = spec_of(
        "MPTForCausalLM",
        d_model=64,
        n_heads=8,
        n_layers=2,
        max_seq_len=99,
        attn_config={"alibi_bias_max": 16, "clip_qkv": 6, "softmax_scale": 0.5},
    )
    mixer, ffn = spec.layers[0]
    assert (mixer.projections.clip, mixer.scale, mixer.scores.slopes[0]) == (6, 0.5, 0.25)
    assert (spec.max_length, ffn.intermediate, ffn.bias) == (99, 256, False)


def test_both_spellings_of_stablelm_read_the_older_fields(spec_of: Any) -> None:
    fields = {"rope_pct": 0.25, "norm_eps": 1e-4, "num_key_value_heads": 8}
    old, new = (
        spec_of(name, **fields) for name in ("StableLMEpochForCausalLM", "StableLmForCausalLM")
    )
    assert old == new and old.layers[0][0].rope.dim == 2 and old.norm.eps == 1e-4


def test_starcoder2_and_persimmon_take_their_defaults(spec_of: Any) -> None:
    starcoder = spec_of("Starcoder2ForCausalLM", num_key_value_heads=2)
    assert starcoder.head.tied and starcoder.layers[0][1].activation == "gelu_pytorch_tanh"
    persimmon = spec_of("PersimmonForCausalLM")
    mixer, ffn = persimmon.layers[0]
    assert ffn.activation == "relu2" and mixer.rope.dim == 4 and mixer.qk_norm.norm.bias


def test_starcoder_has_one_kv_head_unless_its_config_says_otherwise(spec_of: Any) -> None:
    for fields, kv_heads, groups in (({}, 1, 1), ({"multi_query": False}, 8, 8)):
        spec = spec_of("GPTBigCodeForCausalLM", **fields)
        mixer, ffn = spec.layers[0]
        assert (mixer.num_kv_heads, spec.tensors.fused[0].groups) == (kv_heads, groups)
        assert ffn.activation == "gelu_pytorch_tanh" and spec.head.tied


def test_nanochat_turns_backwards_by_a_rope_without_scaling(spec_of: Any) -> None:
    spec = spec_of("NanoChatForCausalLM")
    mixer, ffn = spec.layers[0]
    assert (mixer.rope.kind, mixer.rope.base, ffn.activation) == ("backwards", 1e4, "relu2")
    assert mixer.qk_norm.after_rope and not spec.norm.scaled and spec.head.softcap == 15.0
    with pytest.raises(ModelError, match=r"rope is scaled .'linear'.* Remove rope_scaling"):
        spec_of("NanoChatForCausalLM", rope_scaling={"rope_type": "linear", "factor": 2.0})


def test_biogpt_multiplies_embeddings_unless_told_otherwise(spec_of: Any) -> None:
    spec = spec_of("BioGptForCausalLM")
    assert spec.embedding.scale == 8.0 and spec.embedding.positions == Positions(514, offset=2)
    assert spec_of("BioGptForCausalLM", scale_embedding=False).embedding.scale == 1.0


def test_positions_of_xglm_are_computed_and_none_may_be_blank(spec_of: Any) -> None:
    fields = {"d_model": 64, "ffn_dim": 96, "num_layers": 2, "attention_heads": 4}
    spec = spec_of("XGLMForCausalLM", **fields)
    assert spec.embedding == Embedding(8.0, Positions(514, offset=2, waves=True))
    assert (spec.layers[0][1].intermediate, spec.head.tied) == (96, True)
    for refused in ({"pad_token_id": 5}, {"add_cross_attention": True}):
        with pytest.raises(ModelError, match=next(iter(refused))):
            spec_of("XGLMForCausalLM", **fields, **refused)


def test_the_one_bias_of_gpt_neox_japanese_is_in_its_last_layer(spec_of: Any) -> None:
    spec = spec_of("GPTNeoXJapaneseForCausalLM", num_hidden_layers=3, rotary_pct=0.5)
    assert [mixer.projections.output_bias for mixer, _ in spec.layers] == [False, False, True]
    assert spec.layers[0][1].intermediate == 4 * spec.hidden and not spec.layers[0][1].bias
    assert spec.layers[0][0].rope.dim == spec.layers[0][0].head_dim // 2 and spec.head.tied
