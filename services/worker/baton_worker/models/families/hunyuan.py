"""HunYuan mixtures."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

from baton_worker.models.families.common import (
    Config,
    architecture,
    decoder,
    glu,
    gqa,
    named,
    rms,
)
from baton_worker.models.families.moe_common import (
    FUSED,
    LAYER,
    NORM_EPS,
    first,
    no_auxiliary_loss,
    of_layer,
    shared_under,
    small,
    sparse_where,
)
from baton_worker.spec import (
    Attention,
    Decoder,
    KVSharingSource,
    KVSharingTarget,
    Mixer,
    Moe,
    QkNorm,
    Router,
)


@architecture("HunYuanMoEV1ForCausalLM")
def hunyuan_moe(c: Config) -> Decoder:
    bias, norm = getattr(c, "attention_bias", False), rms(c, NORM_EPS)
    normed = QkNorm(norm, after_rope=True) if getattr(c, "use_qk_norm", True) else None
    heads = gqa(c, bias=bias, output_bias=bias, qk_norm=normed)
    return decoder(
        c,
        _hunyuan_heads(c, heads),
        [_hunyuan_experts(c, layer) for layer in range(c.num_hidden_layers)],
        norm=norm,
        names=named(
            LAYER,
            query_norm="self_attn.query_layernorm",
            key_norm="self_attn.key_layernorm",
            router="mlp.gate.wg",
        )
        + shared_under("mlp.shared_mlp"),
        stacked=FUSED,
    )


@architecture("HYV3ForCausalLM")
def hunyuan_v3(c: Config) -> Decoder:
    """Hunyuan 3: a router with a correction, and a shared expert."""
    bias, norm = getattr(c, "attention_bias", False), rms(c, NORM_EPS)
    heads = gqa(
        c,
        bias=bias,
        output_bias=bias,
        qk_norm=QkNorm(norm),
        base=11_158_840.0,
        default_head_dim=128,
    )
    shared = replace(
        small(c, c.moe_intermediate_size * first(c, "num_shared_experts", default=1)),
        bias=getattr(c, "mlp_bias", False),
    )
    routing = no_auxiliary_loss(c, norm=1.0, scale=getattr(c, "router_scaling_factor", 2.826))
    moe = Moe(routing, small(c), shared=shared)
    dense = glu(c, bias=getattr(c, "mlp_bias", False))
    kinds = getattr(c, "mlp_layer_types", None)
    layers = [kinds[n] == "sparse" if kinds else n > 0 for n in range(c.num_hidden_layers)]
    return decoder(
        c,
        heads,
        sparse_where(layers, moe, dense),
        norm=norm,
        names=named(LAYER, router_correction="mlp.e_score_correction_bias"),
        stacked=FUSED,
        renames=(
            (r"\.mlp\.router\.gate\.weight$", ".mlp.gate.weight"),
            (r"\.mlp\.expert_bias$", ".mlp.e_score_correction_bias"),
            (r"\.mlp\.shared_mlp\.", ".mlp.shared_experts."),
        ),
        unused=(f"model.layers.{c.num_hidden_layers}.",),
    )


def _hunyuan_heads(c: Config, heads: Attention) -> list[Mixer]:
    """Every `cla_share_factor`-th layer shares its KV with the layers up to the next one."""
    layers, every = range(c.num_hidden_layers), getattr(c, "cla_share_factor", 1)
    if not getattr(c, "use_cla", False) or every == 1:
        return [heads for _ in layers]
    fields = {field.name: getattr(heads, field.name) for field in dataclasses.fields(heads)}
    source, target = KVSharingSource(**fields), KVSharingTarget(**fields)
    return [target if layer % every else source for layer in layers]


def _hunyuan_experts(c: Config, layer: int) -> Moe:
    num_shared = of_layer(getattr(c, "num_shared_expert", 1), layer)
    size = of_layer(getattr(c, "moe_intermediate_size", None), layer) or c.intermediate_size
    chosen = Router(
        of_layer(c.num_experts, layer),
        of_layer(first(c, "moe_topk", "num_experts_per_tok"), layer),
        norm=1.0,
    )
    return Moe(chosen, small(c, size), shared=small(c, c.intermediate_size * num_shared))
