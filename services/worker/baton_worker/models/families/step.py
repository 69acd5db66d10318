"""Step: experts stored stacked, a shared expert beside them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from baton_worker.models.families.common import (
    Config,
    architecture,
    decoder,
    glu,
    gqa,
    named,
    rms,
    rope,
    spelled,
)
from baton_worker.models.families.moe_common import (
    LAYER,
    NORM_EPS,
    draft_layers,
    first,
    shared_under,
    small,
    sparse_where,
)
from baton_worker.spec import (
    Attention,
    Decoder,
    Ffn,
    Glu,
    LowRank,
    Mask,
    Moe,
    OutputGate,
    Projections,
    QkNorm,
    Router,
    Stacked,
)

NAMES = named(
    LAYER,
    router="moe.gate",
    router_correction="moe.router_bias",
    expert_gate="moe.experts.{expert}.gate_proj",
    expert_up="moe.experts.{expert}.up_proj",
    expert_down="moe.experts.{expert}.down_proj",
) + shared_under("share_expert")
STACKED = tuple(
    Stacked(f"{LAYER}.moe.{part}_proj.weight", (f"expert_{part}",))
    for part in ("gate", "up", "down")
)


def sparse_layers(c: Config, first_dense: int) -> list[bool]:
    """Whether each layer has experts; `moe_layers_enum` lists their indices, separated by
    commas."""
    kinds = getattr(c, "mlp_layer_types", None)
    if kinds:
        return [kind == "sparse" for kind in kinds[: c.num_hidden_layers]]
    layers = getattr(c, "moe_layers_enum", None)
    listed = layers.split(",") if isinstance(layers, str) else layers
    chosen = {int(n) for n in listed} if listed else set(range(first_dense, c.num_hidden_layers))
    return [layer in chosen for layer in range(c.num_hidden_layers)]


@architecture("Step3TextForCausalLM")
def step3(c: Config) -> Decoder:
    """Multi-matrix factorisation attention: low-rank normed queries, one wide KV head."""
    c = spelled(c, max_position_embeddings="max_position_embedding")
    norm, rank = rms(c, NORM_EPS), getattr(c, "share_q_dim", None) or c.head_dim
    low_rank = Projections(query=LowRank(rank, norm))
    heads = gqa(c, num_kv_heads=1, base=500_000.0, projections=low_rank)
    weights = Router(
        c.moe_num_experts,
        c.moe_top_k,
        norm=1.0 if getattr(c, "norm_expert_weight", True) else None,
    )
    moe = Moe(weights, small(c), shared=small(c, c.share_expert_dim))
    return decoder(
        c,
        heads,
        sparse_where(sparse_layers(c, 1), moe, glu(c)),
        norm=norm,
        names=NAMES + named(LAYER, query="self_attn.wq"),
        stacked=STACKED,
    )


@architecture("Step3p5ForCausalLM")
def step3p5(c: Config) -> Decoder:
    """Windowed layers have more heads than global ones; a gate per head."""
    norm = rms(c, NORM_EPS, offset=1.0)
    layers = range(c.num_hidden_layers)
    return decoder(
        c,
        [_heads(c, layer) for layer in layers],
        [_ffn(c, layer, sparse) for layer, sparse in enumerate(sparse_layers(c, 3))],
        norm=norm,
        names=NAMES,
        stacked=STACKED,
        unused=draft_layers(c),
    )


def _heads(c: Config, layer: int) -> Attention:
    kinds = getattr(c, "layer_types", None)
    kind = kinds[layer] if kinds else "full_attention"
    heads = gqa(
        c,
        num_kv_heads=first(c, "num_attention_groups", "num_key_value_heads"),
        rope=_rope(c, layer, kind),
        bias=getattr(c, "attention_bias", False),
        qk_norm=QkNorm(rms(c, NORM_EPS, offset=1.0)),
        gate=OutputGate("head") if getattr(c, "use_head_wise_attn_gate", False) else None,
    )
    if kind != "sliding_attention":
        return heads
    other = getattr(c, "attention_other_setting", None) or SimpleNamespace()
    return replace(
        heads,
        mask=Mask(window=c.sliding_window),
        num_heads=first(other, "num_attention_heads", default=heads.num_heads),
        num_kv_heads=first(other, "num_attention_groups", default=heads.num_kv_heads),
    )


def _rope(c: Config, layer: int, kind: str) -> Any:
    """Base and rotated share differ by layer; scaling applies to the listed layer types."""
    chosen = getattr(c, "use_rope_layers", None)
    if chosen and not chosen[layer]:
        return None
    base, only = first(c, "rope_theta", default=10_000.0), getattr(c, "yarn_only_types", None)
    partial = getattr(c, "partial_rotary_factors", None)
    scaling = getattr(c, "rope_scaling", None) if not only or kind in only else None
    parameters = dict(vars(scaling)) if scaling else {"rope_type": "default"}
    parameters["rope_theta"] = base[layer] if isinstance(base, list) else base
    parameters["partial_rotary_factor"] = partial[layer] if partial else 1.0
    return rope(c, c.head_dim, parameters=SimpleNamespace(**parameters), partial=1.0)


def _ffn(c: Config, layer: int, sparse: bool) -> Ffn:
    """Some last layers are clamped; a limit of 0 is none."""
    shared_limit = _limit(c, "swiglu_limits_shared", layer)
    if not sparse:
        return replace(glu(c), limit=shared_limit)
    routing = Router(
        c.moe_num_experts,
        c.moe_top_k,
        getattr(c, "moe_router_activation", "sigmoid"),
        correction=getattr(c, "use_moe_router_bias", True),
        norm=1.0 if getattr(c, "norm_expert_weight", True) else None,
        scale=getattr(c, "moe_router_scaling_factor", 1.0),
    )
    shared = Glu(c.share_expert_dim, limit=shared_limit)
    expert = replace(small(c), limit=_limit(c, "swiglu_limits", layer))
    return Moe(routing, expert, shared=shared)


def _limit(c: Config, name: str, layer: int) -> float | None:
    limits = getattr(c, name, None) or []
    return (limits[layer] or None) if layer < len(limits) else None
