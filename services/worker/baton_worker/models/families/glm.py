"""GLM: half of each head rotated, channel by channel, gate and up in one tensor."""

from __future__ import annotations

from dataclasses import replace

from baton.errors import ModelError
from baton_worker.models.families.common import (
    GATE_UP,
    QKV,
    Config,
    architecture,
    decoder,
    glu,
    gqa,
    named,
    rms,
    spelled,
)
from baton_worker.spec import Decoder, Fused

LAYER = "model.layers.{layer}"


@architecture("GlmForCausalLM")
def glm(c: Config) -> Decoder:
    bias = getattr(c, "attention_bias", True)
    heads = gqa(c, default_head_dim=128, partial=0.5, interleaved=True, bias=bias)
    fused = (Fused(f"{LAYER}.mlp.gate_up_proj", GATE_UP),)
    return decoder(c, heads, glu(c), norm=rms(c, 1.5625e-07), fused=fused)


@architecture("Glm4ForCausalLM")
def glm4(c: Config) -> Decoder:
    names = named(
        LAYER,
        mixer_post_norm="post_self_attn_layernorm",
        ffn_norm="post_attention_layernorm",
        ffn_post_norm="post_mlp_layernorm",
    )
    spec = glm(c)
    return replace(spec, style="sandwich", tensors=replace(spec.tensors, names=names))


@architecture("ChatGLMModel", "ChatGLMForConditionalGeneration")
def chatglm(c: Config) -> Decoder:
    """ChatGLM2, ChatGLM3 and GLM-4 in their original format."""
    c = _spelled(c)
    block = "transformer.encoder.layers.{layer}"
    names = named(
        block,
        embedding="transformer.embedding.word_embeddings",
        norm="transformer.encoder.final_layernorm",
        head="transformer.output_layer",
        mixer_norm="input_layernorm",
        output="self_attention.dense",
        ffn_norm="post_attention_layernorm",
        down="mlp.dense_4h_to_h",
    )
    return decoder(
        c,
        gqa(c, partial=0.5, interleaved=True, bias=getattr(c, "add_qkv_bias", False)),
        glu(c, activation="silu"),
        names=names,
        fused=(
            Fused(f"{block}.self_attention.query_key_value", QKV),
            Fused(f"{block}.mlp.dense_h_to_4h", GATE_UP),
        ),
        unused=("transformer.rotary_pos_emb.",),
    )


def _spelled(c: Config) -> Config:
    """A ChatGLM config with the field names used here."""
    if getattr(c, "position_encoding_2d", False):
        raise ModelError(
            "This is the first ChatGLM-6B, whose prompts are read in both directions and counted "
            "in two dimensions: Baton cannot serve it. Use ChatGLM2 or later."
        )
    c = spelled(
        c,
        num_hidden_layers="num_layers",
        intermediate_size="ffn_hidden_size",
        head_dim="kv_channels",
        rms_norm_eps="layernorm_epsilon",
        max_position_embeddings="seq_length",
        vocab_size="padded_vocab_size",
    )
    shared = getattr(c, "multi_query_attention", False)
    c.num_key_value_heads = c.multi_query_group_num if shared else c.num_attention_heads
    c.rope_theta = 10_000.0 * (getattr(c, "rope_ratio", None) or 1.0)
    return c
