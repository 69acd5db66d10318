"""Phi 1 to 4."""

from __future__ import annotations

from baton_worker.models.families.common import (
    GATE_UP,
    QKV,
    Config,
    architecture,
    decoder,
    glu,
    gqa,
    layer_norm,
    mlp,
    named,
    rms,
)
from baton_worker.spec import (
    Decoder,
    Fused,
    Head,
    Mask,
    QkNorm,
)

LAYER = "model.layers.{layer}"


@architecture("PhiForCausalLM")
def phi(c: Config) -> Decoder:
    norm = layer_norm(getattr(c, "layer_norm_eps", 1e-5))
    qk_norm = QkNorm(norm) if getattr(c, "qk_layernorm", False) else None
    names = named(
        LAYER,
        norm="model.final_layernorm",
        output="self_attn.dense",
        query_norm="self_attn.q_layernorm",
        key_norm="self_attn.k_layernorm",
        up="mlp.fc1",
        down="mlp.fc2",
    )
    heads = gqa(c, partial=0.5, bias=True, output_bias=True, qk_norm=qk_norm)
    return decoder(
        c,
        heads,
        mlp(c, activation="gelu_new"),
        norm=norm,
        style="parallel",
        head=Head(bias=True),
        names=names,
    )


@architecture("Phi3ForCausalLM")
def phi3(c: Config) -> Decoder:
    fused = (
        Fused(f"{LAYER}.self_attn.qkv_proj", QKV),
        Fused(f"{LAYER}.mlp.gate_up_proj", GATE_UP),
    )
    heads = gqa(c, partial=1.0, mask=Mask(window=getattr(c, "sliding_window", None)))
    return decoder(c, heads, glu(c), norm=rms(c, 1e-5), fused=fused)
