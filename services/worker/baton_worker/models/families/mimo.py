"""MiMo-V2."""

from __future__ import annotations

from types import SimpleNamespace

from baton_worker.models.families.common import (
    Config,
    architecture,
    decoder,
    glu,
    gqa,
    named,
    rms,
    rope,
)
from baton_worker.models.families.moe_common import (
    FUSED,
    LAYER,
    NORM_EPS,
    after_dense,
    draft_layers,
    first,
    no_auxiliary_loss,
    small,
    sparse_where,
)
from baton_worker.spec import (
    Attention,
    Decoder,
    Mask,
    Moe,
    Sinks,
    Values,
)


@architecture("MiMoV2FlashForCausalLM")
def mimo_v2(c: Config) -> Decoder:
    hybrid = getattr(c, "hybrid_layer_pattern", None)
    kinds = ["sliding_attention" if one else "full_attention" for one in hybrid or []]
    mixers = [_mimo_heads(c, kind) for kind in kinds or _mimo_kinds(c)]
    moe = Moe(no_auxiliary_loss(c), small(c))
    frequency = getattr(c, "moe_layer_freq", None)
    ffns = after_dense(c, moe, 1)
    if isinstance(frequency, list):
        ffns = sparse_where([bool(sparse) for sparse in frequency], moe, glu(c))
    return decoder(
        c,
        mixers,
        ffns,
        norm=rms(c, first(c, "layernorm_epsilon", default=NORM_EPS)),
        names=named(LAYER, sinks="self_attn.attention_sink_bias"),
        stacked=FUSED,
        renames=((r"\.self_attn\.sinks$", ".self_attn.attention_sink_bias"),),
        unused=("model.mtp.", *draft_layers(c)),
    )


def _mimo_kinds(c: Config) -> list[str]:
    named: list[str] | None = getattr(c, "layer_types", None)
    return named or [
        "full_attention" if layer == 0 or (layer + 1) % 6 == 0 else "sliding_attention"
        for layer in range(c.num_hidden_layers)
    ]


def _mimo_heads(c: Config, kind: str) -> Attention:
    """Windowed layers have twice the KV heads, their own rope, and sinks."""
    local = kind == "sliding_attention"
    rope_parameters = getattr(getattr(c, "rope_parameters", None), kind, None)
    if rope_parameters is None:
        base = c.swa_rope_theta if local else c.rope_theta
        rope_parameters = SimpleNamespace(
            rope_theta=base, partial_rotary_factor=c.partial_rotary_factor
        )
    num_kv_heads = c.num_key_value_heads
    if local:
        num_kv_heads = first(c, "swa_num_key_value_heads", default=2 * num_kv_heads)
    size = getattr(c, "sliding_window_size", None)
    window = size + 1 if size is not None else getattr(c, "sliding_window", 129)
    return gqa(
        c,
        num_kv_heads=num_kv_heads,
        rope=rope(c, c.head_dim, parameters=rope_parameters, partial=0.334),
        bias=getattr(c, "attention_bias", False),
        mask=Mask(window if local else None),
        sinks=Sinks() if local else None,
        values=Values(c.v_head_dim, scale=first(c, "attention_value_scale", default=1.0)),
    )
