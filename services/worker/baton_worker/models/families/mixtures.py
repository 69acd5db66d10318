"""Mixtures of experts with attention over keys and values."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from baton.errors import ModelError
from baton_worker.models.families.common import (
    QKV,
    Config,
    architecture,
    decoder,
    glu,
    gqa,
    layer_norm,
    named,
    rms,
    rope,
    rotated,
    rotating_windows,
    sliding,
    spelled,
)
from baton_worker.models.spec import (
    Attention,
    BorrowingAttention,
    Decoder,
    Embedding,
    Ffn,
    Fused,
    Glu,
    Head,
    LendingAttention,
    Mixer,
    Moe,
    Router,
    Stacked,
)

LAYER = "model.layers.{layer}"
EXPERT_GATE_UP = ("expert_gate", "expert_up")
SHARED = ("shared_gate", "shared_up", "shared_down")
NORM_EPS = 1e-5


def first(c: Config, *names: str, default: Any = None) -> Any:
    """The first of these fields that the config has and that is not null."""
    return next((v for v in (getattr(c, name, None) for name in names) if v is not None), default)


def of_layer(value: Any, layer: int) -> Any:
    """A field that is either one value or a list with one per layer."""
    return value[layer] if isinstance(value, list) else value


def experts(c: Config) -> int:
    """How many experts the config has; every family has its own word for it."""
    names = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    count: int | None = first(c, *names)
    if count is None:
        raise AttributeError("num_experts")
    return count


def router(c: Config, **changes: Any) -> Router:
    """A softmax over the experts of the config, of which the best few are taken."""
    top_k = first(c, "num_experts_per_tok", "moe_k", "moe_topk", "moe_top_k")
    values: dict[str, Any] = {"num_experts": experts(c), "top_k": top_k}
    if getattr(c, "norm_topk_prob", False):
        values["norm"] = 1.0
    return Router(**values | changes)


def no_auxiliary_loss(c: Config, **changes: Any) -> Router:
    """DeepSeek-V3's router: sigmoid scores, corrected for the choice, of the best groups."""
    values: dict[str, Any] = {
        "score": "sigmoid",
        "correction": True,
        "num_groups": getattr(c, "n_group", None) or 1,
        "top_groups": getattr(c, "topk_group", None) or 1,
        "group_width": 2,
        "norm": 1.0 if getattr(c, "norm_topk_prob", True) else None,
        "norm_floor": 1e-20,
        "scale": first(c, "routed_scaling_factor", default=1.0),
    }
    return router(c, **values | changes)


def small(c: Config, size: int | None = None) -> Glu:
    """The feed-forward of one expert."""
    return replace(glu(c), intermediate=size or c.moe_intermediate_size)


def sparse_where(layers: Sequence[bool], sparse: Ffn, dense: Ffn) -> list[Ffn]:
    """One feed-forward per layer."""
    return [sparse if chosen else dense for chosen in layers]


def after_dense(c: Config, moe: Moe, first_dense: int = 0) -> list[Ffn]:
    """Dense first layers, then experts; `mlp_layer_types` says it layer by layer."""
    kinds = getattr(c, "mlp_layer_types", None)
    dense = first(c, "first_k_dense_replace", default=first_dense)
    layers = [
        kinds[layer] == "sparse" if kinds else layer >= dense
        for layer in range(c.num_hidden_layers)
    ]
    return sparse_where(layers, moe, glu(c))


def stacked(source: str) -> tuple[Stacked, ...]:
    """Experts as two tensors, gate over up and down: what transformers 5 has in memory."""
    return (
        Stacked(f"{source}.gate_up_proj", EXPERT_GATE_UP),
        Stacked(f"{source}.down_proj", ("expert_down",)),
    )


FUSED = stacked(f"{LAYER}.mlp.experts")


@architecture("MixtralForCausalLM")
def mixtral(c: Config) -> Decoder:
    names = named(
        f"{LAYER}.block_sparse_moe",
        router="gate",
        expert_gate="experts.{expert}.w1",
        expert_down="experts.{expert}.w2",
        expert_up="experts.{expert}.w3",
    )
    return decoder(
        c,
        gqa(c, window=getattr(c, "sliding_window", None), base=1e6),
        Moe(router(c, norm=1.0), glu(c)),
        norm=rms(c, NORM_EPS),
        names=names,
        stacked=stacked(f"{LAYER}.block_sparse_moe.experts"),
        renames=((r"\.mlp\.(gate|experts)\.", r".block_sparse_moe.\1."),),
    )


def qwen_layers(c: Config, moe: Moe) -> list[Ffn]:
    """Experts in every `decoder_sparse_step`-th layer that is not in `mlp_only_layers`."""
    step, dense = getattr(c, "decoder_sparse_step", 1), getattr(c, "mlp_only_layers", None) or []
    layers = [
        layer not in dense and (layer + 1) % step == 0 for layer in range(c.num_hidden_layers)
    ]
    return sparse_where(layers, moe, glu(c))


@architecture("Qwen2MoeForCausalLM")
def qwen2_moe(c: Config) -> Decoder:
    shared = small(c, c.shared_expert_intermediate_size)
    moe = Moe(router(c), small(c), shared=shared, shared_gate=True)
    return decoder(
        c,
        sliding(c, gqa(c, bias=getattr(c, "qkv_bias", True))),
        qwen_layers(c, moe),
        names=shared_under("mlp.shared_expert"),
        stacked=FUSED,
    )


def shared_under(prefix: str) -> tuple[tuple[str, str], ...]:
    """The names of a shared expert: its three projections under one prefix."""
    return named(
        LAYER,
        shared_gate=f"{prefix}.gate_proj",
        shared_up=f"{prefix}.up_proj",
        shared_down=f"{prefix}.down_proj",
    )


@architecture("Qwen3MoeForCausalLM")
def qwen3_moe(c: Config) -> Decoder:
    bias = getattr(c, "attention_bias", False)
    heads = gqa(c, bias=bias, output_bias=bias, qk_norm=rms(c))
    return decoder(c, sliding(c, heads), qwen_layers(c, Moe(router(c), small(c))), stacked=FUSED)


@architecture("DbrxForCausalLM")
def dbrx(c: Config) -> Decoder:
    attention, ffn = c.attn_config, c.ffn_config
    c = spelled(
        c,
        hidden_size="d_model",
        num_attention_heads="n_heads",
        num_hidden_layers="n_layers",
        max_position_embeddings="max_seq_len",
    )
    c.num_key_value_heads = getattr(attention, "kv_n_heads", 1)
    body, block = "transformer", "transformer.blocks.{layer}"
    activation = getattr(getattr(ffn, "ffn_act_fn", None), "name", "silu")
    routing = Router(
        ffn.moe_num_experts, ffn.moe_top_k, norm=getattr(ffn, "moe_normalize_expert_weights", 1.0)
    )
    names = named(
        block,
        embedding=f"{body}.wte",
        norm=f"{body}.norm_f",
        mixer_norm="norm_attn_norm.norm_1",
        ffn_norm="norm_attn_norm.norm_2",
        output="norm_attn_norm.attn.out_proj",
        router="ffn.router.layer",
    )
    matrices = {"w1": "expert_gate", "v1": "expert_up", "w2": "expert_down"}
    return decoder(
        c,
        gqa(
            c, clip=getattr(attention, "clip_qkv", None), base=getattr(attention, "rope_theta", 1e4)
        ),
        Moe(routing, Glu(ffn.ffn_hidden_size, activation)),
        norm=layer_norm(NORM_EPS, bias=False),
        names=names,
        fused=(Fused(f"{block}.norm_attn_norm.attn.Wqkv", QKV),),
        stacked=tuple(
            Stacked(f"{block}.ffn.experts.mlp.{own}", (role,), flat=True, transposed=own == "w2")
            for own, role in matrices.items()
        ),
    )


@architecture("Glm4MoeForCausalLM")
def glm4_moe(c: Config) -> Decoder:
    norm = rms(c, NORM_EPS)
    heads = gqa(
        c,
        bias=getattr(c, "attention_bias", False),
        qk_norm=norm if getattr(c, "use_qk_norm", False) else None,
        partial=0.5,
    )
    shared = small(c, c.moe_intermediate_size * c.n_shared_experts)
    moe = Moe(no_auxiliary_loss(c), small(c), shared=shared)
    return decoder(
        c, heads, after_dense(c, moe, 1), norm=norm, stacked=FUSED, unused=draft_layers(c)
    )


def draft_layers(c: Config) -> tuple[str, ...]:
    """Layers past the last predict further tokens; without a draft they stay unread."""
    extra = first(c, "num_nextn_predict_layers", default=0)
    return tuple(f"model.layers.{c.num_hidden_layers + layer}." for layer in range(extra))


@architecture("GptOssForCausalLM")
def gpt_oss(c: Config) -> Decoder:
    """Its experts come as bfloat16, or as MXFP4 blocks and scales."""
    if getattr(c, "swiglu_alpha", 1.702) != 1.702:
        raise ModelError("This config's swiglu_alpha is not 1.702, the only one that Baton knows.")
    bias = getattr(c, "attention_bias", True)
    norm, window = rms(c, NORM_EPS), getattr(c, "sliding_window", 128)
    heads = gqa(c, bias=bias, output_bias=bias, sinks=True, default_head_dim=64, base=150_000.0)
    kinds = getattr(c, "layer_types", None) or [
        "full_attention" if layer % 2 else "sliding_attention"
        for layer in range(c.num_hidden_layers)
    ]
    expert = Glu(
        c.intermediate_size,
        "quick_gelu",
        bias=True,
        limit=getattr(c, "swiglu_limit", 7.0),
        limit_first=True,
        up_offset=1.0,
    )
    return decoder(
        c,
        [replace(heads, window=window) if k == "sliding_attention" else heads for k in kinds],
        Moe(router(c, bias=True, norm=1.0), expert),
        norm=norm,
        names=named(LAYER, router="mlp.router"),
        stacked=_gpt_oss_experts(f"{LAYER}.mlp.experts"),
    )


def _gpt_oss_experts(prefix: str) -> tuple[Stacked, ...]:
    gate_up, down = f"{prefix}.gate_up_proj", f"{prefix}.down_proj"
    gate_up_parts, down_parts = EXPERT_GATE_UP, ("expert_down",)
    return (
        Stacked(gate_up, gate_up_parts, interleaved=True, transposed=True),
        Stacked(down, down_parts, transposed=True),
        Stacked(f"{gate_up}_bias", gate_up_parts, suffix="bias", interleaved=True),
        Stacked(f"{down}_bias", down_parts, suffix="bias"),
        Stacked(f"{gate_up}_blocks", gate_up_parts, interleaved=True, scales=f"{gate_up}_scales"),
        Stacked(f"{down}_blocks", down_parts, scales=f"{down}_scales"),
    )


@architecture("Ernie4_5_MoeForCausalLM", "Ernie4_5_MoEForCausalLM", "Ernie45MoeForCausalLM")
def ernie_moe(c: Config) -> Decoder:
    bias, norm, count = getattr(c, "use_bias", False), rms(c, NORM_EPS), c.num_hidden_layers
    heads = gqa(c, bias=bias, output_bias=bias, interleaved=True, base=500_000.0)
    begin, end = first(c, "moe_layer_start_index", default=1), getattr(c, "moe_layer_end_index", -1)
    interval, num_shared = getattr(c, "moe_layer_interval", 1), c.moe_num_shared_experts
    kinds = getattr(c, "mlp_layer_types", None)
    layers = [
        kinds[layer] == "sparse"
        if kinds
        else (layer + 1) % interval == 0 and begin <= layer <= (count - 1 if end == -1 else end)
        for layer in range(count)
    ]
    moe = Moe(
        router(c, correction=True, norm=1.0, norm_floor=getattr(c, "moe_norm_min", 1e-12)),
        small(c),
        shared=replace(small(c, c.moe_intermediate_size * num_shared), bias=bias)
        if num_shared
        else None,
    )
    return decoder(
        c,
        heads,
        sparse_where(layers, moe, glu(c, bias=bias)),
        tied=True,
        head=Head(bias=bias),
        norm=norm,
        names=named(LAYER, router_correction="mlp.moe_statics.e_score_correction_bias"),
        stacked=FUSED,
        renames=((r"\.gate\.moe_statics\.", ".moe_statics."),),
    )


@architecture("HunYuanMoEV1ForCausalLM")
def hunyuan_moe(c: Config) -> Decoder:
    bias, norm = getattr(c, "attention_bias", False), rms(c, NORM_EPS)
    normed = norm if getattr(c, "use_qk_norm", True) else None
    heads = gqa(c, bias=bias, output_bias=bias, qk_norm=normed, qk_norm_after_rope=True)
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


def _hunyuan_heads(c: Config, heads: Attention) -> list[Mixer]:
    """Every `cla_share_factor`-th layer lends its keys and values to those between."""
    layers, every = range(c.num_hidden_layers), getattr(c, "cla_share_factor", 1)
    if not getattr(c, "use_cla", False) or every == 1:
        return [heads for _ in layers]
    fields = {field.name: getattr(heads, field.name) for field in dataclasses.fields(heads)}
    lending, borrowing = LendingAttention(**fields), BorrowingAttention(**fields)
    return [borrowing if layer % every else lending for layer in layers]


def _hunyuan_experts(c: Config, layer: int) -> Moe:
    num_shared = of_layer(getattr(c, "num_shared_expert", 1), layer)
    size = of_layer(getattr(c, "moe_intermediate_size", None), layer) or c.intermediate_size
    chosen = Router(
        of_layer(c.num_experts, layer),
        of_layer(first(c, "moe_topk", "num_experts_per_tok"), layer),
        norm=1.0,
    )
    return Moe(chosen, small(c, size), shared=small(c, c.intermediate_size * num_shared))


@architecture("GraniteMoeSharedForCausalLM", "GraniteMoeForCausalLM")
def granite_moe(c: Config) -> Decoder:
    size = getattr(c, "shared_intermediate_size", 0)
    moe = Moe(router(c, norm=1.0), glu(c), shared=small(c, size) if size else None)
    return granite_body(c, granite_heads(c), moe)


def granite_heads(c: Config, **changes: Any) -> Attention:
    """Heads whose scale the config gives."""
    bias = getattr(c, "attention_bias", False)
    return gqa(c, bias=bias, output_bias=bias, scale=c.attention_multiplier, **changes)


def granite_body(
    c: Config, mixers: Mixer | Sequence[Mixer], ffn: Ffn, fused: Sequence[Fused] = ()
) -> Decoder:
    """What Granites with experts share: multipliers, and names. Without experts, the one that all
    tokens visit is the feed-forward."""
    block = f"{LAYER}.block_sparse_moe"
    gate, up, down = ("gate", "up", "down") if isinstance(ffn, Glu) else SHARED
    return decoder(
        c,
        mixers,
        ffn,
        head=Head(scale=1.0 / c.logits_scaling),
        embedding=Embedding(scale=c.embedding_multiplier),
        residual_scale=c.residual_multiplier,
        names=named(
            LAYER,
            router="block_sparse_moe.router.layer",
            **{gate: "shared_mlp.gate", up: "shared_mlp.up", down: "shared_mlp.output_linear"},
        ),
        fused=(Fused(f"{LAYER}.shared_mlp.input_linear", (gate, up)), *fused),
        stacked=(
            Stacked(f"{block}.input_linear.weight", EXPERT_GATE_UP),
            Stacked(f"{block}.output_linear.weight", ("expert_down",)),
            *stacked(f"{block}.experts"),
        ),
        renames=((r"\.router\.weight$", ".router.layer.weight"),),
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
    """Sliding layers have twice the key heads, a rope of their own, and sinks."""
    local = kind == "sliding_attention"
    given = getattr(getattr(c, "rope_parameters", None), kind, None)
    if given is None:
        base = c.swa_rope_theta if local else c.rope_theta
        given = SimpleNamespace(rope_theta=base, partial_rotary_factor=c.partial_rotary_factor)
    num_kv_heads = c.num_key_value_heads
    if local:
        num_kv_heads = first(c, "swa_num_key_value_heads", default=2 * num_kv_heads)
    size = getattr(c, "sliding_window_size", None)
    window = size + 1 if size is not None else getattr(c, "sliding_window", 129)
    return gqa(
        c,
        num_kv_heads=num_kv_heads,
        rope=rope(c, c.head_dim, given=given, partial=0.334),
        bias=getattr(c, "attention_bias", False),
        window=window if local else None,
        sinks=local,
        value_dim=c.v_head_dim,
        value_scale=first(c, "attention_value_scale", default=1.0),
    )


@architecture("ExaoneMoeForCausalLM", "ExaoneMoEForCausalLM")
def exaone_moe(c: Config) -> Decoder:
    norm, window = rms(c, NORM_EPS), getattr(c, "sliding_window", None)
    whole = gqa(c, qk_norm=norm)
    every = getattr(c, "sliding_window_pattern", 4)
    mixers = whole if window is None else rotating_windows(c, whole, window, every)
    shared = small(c, c.moe_intermediate_size * c.num_shared_experts)
    moe = Moe(no_auxiliary_loss(c), small(c), shared=shared)
    return decoder(
        c,
        mixers,
        after_dense(c, moe, 1),
        norm=norm,
        names=named(LAYER, router_correction="mlp.e_score_correction_bias"),
        stacked=FUSED,
        renames=((r"\.gate\.e_score_correction_bias$", ".e_score_correction_bias"),),
        unused=("mtp.", *draft_layers(c)),
    )


@architecture("AfmoeForCausalLM")
def afmoe(c: Config) -> Decoder:
    """Trinity: a gate on every channel of the attention, norms around each half."""
    norm, every = rms(c, NORM_EPS), getattr(c, "global_attn_every_n_layers", 4)
    heads = gqa(c, default_head_dim=128, qk_norm=norm, gate="channel")
    num_shared = first(c, "num_shared_experts", default=2)
    shared = small(c, c.moe_intermediate_size * num_shared) if num_shared else None
    chosen = no_auxiliary_loss(
        c,
        score=getattr(c, "score_func", "sigmoid"),
        norm=1.0 if getattr(c, "route_norm", True) else None,
        scale=first(c, "route_scale", default=1.0),
    )
    dense = first(c, "num_dense_layers", default=1)
    return decoder(
        c,
        rotating_windows(c, heads, getattr(c, "sliding_window", 1024), every),
        after_dense(c, Moe(chosen, small(c), shared=shared), dense),
        norm=norm,
        style="sandwich",
        embedding=Embedding(scale=c.hidden_size**0.5 if getattr(c, "mup_enabled", False) else 1.0),
        names=named(
            LAYER,
            attention_gate="self_attn.gate_proj",
            ffn_norm="pre_mlp_layernorm",
            ffn_post_norm="post_mlp_layernorm",
            router="mlp.router.gate",
            router_correction="mlp.expert_bias",
        ),
        stacked=FUSED,
    )


@architecture("Llama4ForCausalLM")
def llama4(c: Config) -> Decoder:
    count, bias = c.num_hidden_layers, getattr(c, "attention_bias", False)
    norm = rms(c, NORM_EPS)
    step = getattr(c, "interleave_moe_layer_step", 1)
    sparse = getattr(c, "moe_layers", None)
    sparse = range(step - 1, count, step) if sparse is None else sparse
    heads = gqa(c, bias=bias, output_bias=bias, interleaved=True, base=500_000.0)
    names = {
        f"{kind}{role}": f"feed_forward.{where}{role}_proj"
        for kind, where in (
            ("", ""),
            ("expert_", "experts.{expert}."),
            ("shared_", "shared_expert."),
        )
        for role in ("gate", "up", "down")
    }
    experts_ = f"{LAYER}.feed_forward.experts"
    moe = Moe(router(c, score="sigmoid"), glu(c), shared=glu(c), weigh_input=True)
    return decoder(
        c,
        [_llama4_heads(c, heads, turns) for turns in rotated(c)],
        sparse_where(
            [layer in sparse for layer in range(count)], moe, small(c, c.intermediate_size_mlp)
        ),
        norm=norm,
        names=named(LAYER, router="feed_forward.router", **names),
        stacked=(
            Stacked(f"{experts_}.gate_up_proj", EXPERT_GATE_UP, transposed=True),
            Stacked(f"{experts_}.down_proj", ("expert_down",), transposed=True),
        ),
    )


def _llama4_heads(c: Config, heads: Attention, turns: bool) -> Attention:
    """Rotated layers see their chunk; the others see everything, at a rising temperature."""
    if turns:
        norm = rms(c, NORM_EPS, scaled=False) if getattr(c, "use_qk_norm", True) else None
        chunk = getattr(c, "attention_chunk_size", 8192)
        return replace(heads, chunk=chunk, qk_norm=norm, qk_norm_after_rope=True)
    temperature = (getattr(c, "attn_scale", 0.1), float(getattr(c, "floor_scale", 8192)))
    tuned = getattr(c, "attn_temperature_tuning", True)
    return replace(heads, rope=None, temperature=temperature if tuned else None)


@architecture("DeepseekForCausalLM")
def deepseek(c: Config) -> Decoder:
    """DeepSeek-MoE, the first version: plain heads (arXiv:2401.06066)."""
    bias, every = getattr(c, "attention_bias", False), getattr(c, "moe_layer_freq", 1)
    dense = getattr(c, "first_k_dense_replace", 0)
    num_shared = first(c, "n_shared_experts", default=0)
    scale = first(c, "routed_scaling_factor", default=1.0)
    score = getattr(c, "scoring_func", "softmax")
    shared = small(c, c.moe_intermediate_size * num_shared) if num_shared else None
    moe = Moe(router(c, score=score, scale=scale), small(c), shared=shared)
    layers = [layer >= dense and layer % every == 0 for layer in range(c.num_hidden_layers)]
    return decoder(
        c,
        gqa(c, bias=bias, output_bias=bias),
        sparse_where(layers, moe, glu(c)),
        stacked=FUSED,
    )


@architecture("OlmoeForCausalLM")
def olmoe(c: Config) -> Decoder:
    bias, norm = getattr(c, "attention_bias", False), rms(c, NORM_EPS)
    heads = gqa(
        c,
        bias=bias,
        output_bias=bias,
        qk_norm=norm,
        qk_norm_over="full",
    )
    if getattr(c, "clip_qkv", None) is not None:
        raise ModelError("Baton cannot serve OLMoE checkpoints with clip_qkv yet.")
    return decoder(c, heads, Moe(router(c), glu(c)), norm=norm, stacked=FUSED)


@architecture("Dots1ForCausalLM")
def dots1(c: Config) -> Decoder:
    bias, window = getattr(c, "attention_bias", False), getattr(c, "sliding_window", None)
    heads = gqa(c, bias=bias, output_bias=bias, qk_norm=rms(c))
    local = replace(heads, window=window)
    first_local = getattr(c, "max_window_layers", c.num_hidden_layers)
    kinds = getattr(c, "layer_types", None) or [
        "sliding_attention" if window is not None and layer >= first_local else "full_attention"
        for layer in range(c.num_hidden_layers)
    ]
    num_shared = first(c, "n_shared_experts", default=0)
    shared = small(c, c.moe_intermediate_size * num_shared) if num_shared else None
    moe = Moe(no_auxiliary_loss(c), small(c), shared=shared)
    return decoder(
        c,
        [local if kind == "sliding_attention" else heads for kind in kinds],
        after_dense(c, moe),
        stacked=FUSED,
    )


@architecture("MiniMaxM2ForCausalLM")
def minimax_m2(c: Config) -> Decoder:
    partial = c.rotary_dim / c.head_dim if getattr(c, "rotary_dim", None) else 1.0
    heads = gqa(c, qk_norm=rms(c), qk_norm_over="full", partial=partial)
    block = "block_sparse_moe"
    return decoder(
        c,
        heads,
        Moe(router(c, score="sigmoid", correction=True, norm=1.0), glu(c)),
        names=named(
            f"{LAYER}.{block}",
            router="gate",
            router_correction="e_score_correction_bias",
            expert_gate="experts.{expert}.w1",
            expert_down="experts.{expert}.w2",
            expert_up="experts.{expert}.w3",
        ),
        stacked=stacked(f"{LAYER}.{block}.experts"),
        renames=((r"\.mlp\.(gate|experts|e_score_correction_bias)\b", rf".{block}.\1"),),
        unused=draft_layers(c),
    )
