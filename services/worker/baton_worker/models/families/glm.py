"""GLM-4: half of each head rotated, channel by channel, gate and up in one tensor."""

from __future__ import annotations

from baton_worker.models.families.common import (
    GATE_UP,
    Config,
    architecture,
    decoder,
    glu,
    gqa,
    named,
    rms,
)
from baton_worker.models.spec import Decoder, Fused

LAYER = "model.layers.{layer}"


@architecture("Glm4ForCausalLM")
def glm4(c: Config) -> Decoder:
    names = named(
        LAYER,
        mixer_post_norm="post_self_attn_layernorm",
        ffn_norm="post_attention_layernorm",
        ffn_post_norm="post_mlp_layernorm",
    )
    heads = gqa(
        c,
        default_head_dim=128,
        partial=0.5,
        interleaved=True,
        bias=getattr(c, "attention_bias", True),
    )
    fused = (Fused(f"{LAYER}.mlp.gate_up_proj", GATE_UP),)
    return decoder(
        c, heads, glu(c), norm=rms(c, 1.5625e-07), style="sandwich", names=names, fused=fused
    )
