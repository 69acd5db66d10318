"""Mixtures of experts with KV attention."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

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
    rotating_windows,
    sliding,
    spelled,
)
from baton_worker.models.families.moe_common import (
    FUSED,
    LAYER,
    NORM_EPS,
    after_dense,
    draft_layers,
    first,
    no_auxiliary_loss,
    router,
    shared_under,
    small,
    sparse_where,
    stacked,
)
from baton_worker.spec import (
    Decoder,
    Embedding,
    Ffn,
    Fused,
    Glu,
    Head,
    Mask,
    Moe,
    OutputGate,
    QkNorm,
    Router,
    Stacked,
)


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
        gqa(c, mask=Mask(window=getattr(c, "sliding_window", None)), base=1e6),
        Moe(router(c, norm=1.0), glu(c)),
        norm=rms(c, NORM_EPS),
        names=names,
        stacked=stacked(f"{LAYER}.block_sparse_moe.experts"),
        renames=((r"\.mlp\.(gate|experts)\.", r".block_sparse_moe.\1."),),
    )


@architecture("PhimoeForCausalLM", "PhiMoEForCausalLM")
def phimoe(c: Config) -> Decoder:
    """Phi-3.5-MoE: Mixtral with layer norms, biases and SparseMixer."""
    c, bias = _phimoe_rope(c), getattr(c, "attention_bias", False)
    jitter = getattr(c, "router_jitter_noise", 0.01)
    routing = router(c, top_k=2, kind="sparse_mixer", parameters=(("jitter", jitter),))
    whole = mixtral(c)
    heads = gqa(
        c,
        bias=bias,
        output_bias=bias,
        mask=Mask(window=getattr(c, "sliding_window", None)),
        base=1e6,
    )
    return replace(
        whole,
        layers=((heads, Moe(routing, glu(c))),) * c.num_hidden_layers,
        norm=layer_norm(getattr(c, "rms_norm_eps", 1e-5)),
        head=replace(whole.head, bias=getattr(c, "lm_head_bias", False)),
        tensors=replace(
            whole.tensors,
            renames=((r"\.mlp\.", ".block_sparse_moe."), (r"_moe\.router\.", "_moe.gate.")),
        ),
    )


def _phimoe_rope(c: Config) -> Config:
    """With the factor on cosines and sines that belongs to the served length."""
    scaling = getattr(c, "rope_scaling", None) or getattr(c, "rope_parameters", None)
    values = dict(vars(scaling)) if scaling else {}
    factors = {name: values.pop(f"{name}_mscale", None) for name in ("short", "long")}
    if factors["short"] is None or factors["long"] is None:
        return c
    served = getattr(c, "served_length", None) or c.max_position_embeddings
    original = getattr(c, "original_max_position_embeddings", None)
    original = original or values.get("original_max_position_embeddings")
    is_long = original is not None and served > original
    values["attention_factor"] = factors["long" if is_long else "short"]
    return SimpleNamespace(
        **vars(c) | {"rope_scaling": None, "rope_parameters": SimpleNamespace(**values)}
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
    """By default every other one of the first layers slides, not the last ones as in Qwen2."""
    shared = small(c, c.shared_expert_intermediate_size)
    moe = Moe(router(c), small(c), shared=shared, shared_gate=True)
    return decoder(
        c,
        sliding(
            c,
            gqa(c, bias=getattr(c, "qkv_bias", True)),
            lambda layer, most: layer % 2 == 0 and layer < most,
        ),
        qwen_layers(c, moe),
        names=shared_under("mlp.shared_expert"),
        stacked=FUSED,
    )


@architecture("Qwen3MoeForCausalLM")
def qwen3_moe(c: Config) -> Decoder:
    bias = getattr(c, "attention_bias", False)
    window = getattr(c, "sliding_window", 4096) if getattr(c, "use_sliding_window", False) else None
    heads = gqa(c, bias=bias, output_bias=bias, qk_norm=QkNorm(rms(c)), mask=Mask(window=window))
    return decoder(c, heads, qwen_layers(c, Moe(router(c), small(c))), stacked=FUSED)


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
            Stacked(f"{block}.ffn.experts.mlp.{name}", (role,), flat=True, transposed=name == "w2")
            for name, role in matrices.items()
        ),
    )


@architecture("Glm4MoeForCausalLM")
def glm4_moe(c: Config) -> Decoder:
    norm = rms(c, NORM_EPS)
    heads = gqa(
        c,
        bias=getattr(c, "attention_bias", False),
        qk_norm=QkNorm(norm) if getattr(c, "use_qk_norm", False) else None,
        partial=0.5,
    )
    shared = small(c, c.moe_intermediate_size * c.n_shared_experts)
    moe = Moe(no_auxiliary_loss(c), small(c), shared=shared)
    return decoder(
        c, heads, after_dense(c, moe, 1), norm=norm, stacked=FUSED, unused=draft_layers(c)
    )


@architecture("SolarOpenForCausalLM")
def solar_open(c: Config) -> Decoder:
    """GLM-4.5's experts in every layer."""
    heads = gqa(c, bias=getattr(c, "attention_bias", False), default_head_dim=128)
    shared = small(c, c.moe_intermediate_size * c.n_shared_experts)
    moe = Moe(no_auxiliary_loss(c), small(c), shared=shared)
    return decoder(c, heads, moe, norm=rms(c, NORM_EPS), stacked=FUSED)


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
        unused=("model.mtp_",),
    )


@architecture("ExaoneMoeForCausalLM", "ExaoneMoEForCausalLM")
def exaone_moe(c: Config) -> Decoder:
    norm, window = rms(c, NORM_EPS), getattr(c, "sliding_window", None)
    whole = gqa(c, qk_norm=QkNorm(norm))
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
    """Trinity: attention gated per channel, sandwich norms."""
    norm, every = rms(c, NORM_EPS), getattr(c, "global_attn_every_n_layers", 4)
    heads = gqa(c, default_head_dim=128, qk_norm=QkNorm(norm), gate=OutputGate("channel"))
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
    heads = gqa(c, bias=bias, output_bias=bias, qk_norm=QkNorm(norm, over="full"))
    if getattr(c, "clip_qkv", None) is not None:
        raise ModelError("Baton cannot serve OLMoE checkpoints with clip_qkv yet.")
    return decoder(c, heads, Moe(router(c), glu(c)), norm=norm, stacked=FUSED)


@architecture("FlexOlmoForCausalLM")
def flex_olmo(c: Config) -> Decoder:
    """OLMoE with the norms of OLMo 2 (arXiv:2507.07024)."""
    return replace(olmoe(c), style="post")


@architecture("Dots1ForCausalLM")
def dots1(c: Config) -> Decoder:
    bias, window = getattr(c, "attention_bias", False), getattr(c, "sliding_window", None)
    heads = gqa(c, bias=bias, output_bias=bias, qk_norm=QkNorm(rms(c)))
    local = replace(heads, mask=Mask(window))
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
    heads = gqa(c, qk_norm=QkNorm(rms(c), over="full"), partial=partial)
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
