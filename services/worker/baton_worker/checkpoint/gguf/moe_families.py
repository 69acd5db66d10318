"""Mixture-of-experts rows, see `gguf.families`."""

from __future__ import annotations

from types import SimpleNamespace

from baton.errors import ModelError
from baton_worker.checkpoint.gguf.metadata import (
    Family,
    Fields,
    Metadata,
    each,
    head_size,
    layer_kinds,
    partial,
    ropes,
)

_SOFTMAX, _SIGMOID = 1, 2
"""Values of `expert_gating_func`."""
_MAVERICK = 128
"""Expert count of the Llama 4 without query and key norms."""


def experts(file: Metadata, *, normed: bool) -> Fields:
    """Number and size of experts; `normed` is whether weights are normalised by default."""
    count, size = file.own("expert_count"), file.own("feed_forward_length", 0)
    return {
        "num_experts": count,
        "num_local_experts": count,
        "n_routed_experts": count,
        "num_experts_per_tok": file.own("expert_used_count"),
        "moe_intermediate_size": file.own("expert_feed_forward_length", size),
        "norm_topk_prob": file.own("expert_weights_norm", normed),
        "routed_scaling_factor": file.own("expert_weights_scale", 1.0),
        "first_k_dense_replace": file.own("leading_dense_block_count", _leading_dense(file)),
        "n_shared_experts": file.own("expert_shared_count", 0),
        "n_group": file.own("expert_group_count", 1),
        "topk_group": file.own("expert_group_used_count", 1),
    }


def _leading_dense(file: Metadata) -> int:
    """The number of layers before the first with a router; 0 if none has one."""
    layers = range(file.own("block_count", 0))
    routed = (layer for layer in layers if file.has(f"blk.{layer}.ffn_gate_inp.weight"))
    return next(routed, 0)


def corrected(file: Metadata) -> Fields:
    """DeepSeek-V3's router."""
    if (kind := file.own("expert_gating_func", _SIGMOID)) != _SIGMOID:
        raise ModelError(
            f"This GGUF file weighs experts by gating function {kind}; "
            f"its architecture is served with {_SIGMOID} (sigmoid) only."
        )
    return experts(file, normed=True)


def _qwen2_moe(file: Metadata) -> Fields:
    shared = file.own("expert_shared_feed_forward_length")
    return experts(file, normed=False) | {"shared_expert_intermediate_size": shared}


def _normed(file: Metadata) -> Fields:
    return experts(file, normed=True)


def _plain(file: Metadata) -> Fields:
    return experts(file, normed=False)


def granite(file: Metadata) -> Fields:
    """Multipliers of Granite, dense or not."""
    return {
        "embedding_multiplier": file.own("embedding_scale", 1.0),
        "residual_multiplier": file.own("residual_scale", 1.0),
        "attention_multiplier": file.own("attention.scale", head_size(file) ** -0.5),
        "logits_scaling": file.own("logit_scale", 1.0),
    }


def _granite_moe(file: Metadata) -> Fields:
    shared = {"shared_intermediate_size": file.rows("ffn_gate_shexp")}
    return experts(file, normed=True) | granite(file) | shared


def granite_windows(file: Metadata) -> Fields:
    """Granite with windows, dense or with experts, whose gates and up-projections are one tensor
    each. A list says which layers have a rope; without one all have."""
    turns, base = file.own("attention.rope_pattern", None), file.own("rope.freq_base", 10_000.0)
    fields = granite(file) | {
        "layer_types": layer_kinds(file),
        "layer_rope_theta": turns and [base if turned else 0.0 for turned in turns],
    }
    if not file.own("expert_count", 0):
        return fields
    shared = file.rows("ffn_up_shexp") // 2
    mixed = {"architectures": ["GraniteMoeSWAForCausalLM"], "shared_intermediate_size": shared}
    return experts(file, normed=True) | fields | mixed


def _mimo2(file: Metadata) -> Fields:
    """Older files leave out what values are multiplied by. Layers with a window have KV heads and
    a rope of their own."""
    if (scale := file.own("attention.value_scale", None)) is None:
        raise ModelError(
            "This GGUF file of mimo2 leaves out what values are multiplied by: convert the model "
            "again with a new llama.cpp, or use the safetensors checkpoint."
        )
    count = file.own("block_count") - file.own("nextn_predict_layers", 0)
    slides = [int(one) for one in file.own("attention.sliding_window_pattern")[:count]]
    kv_heads, full = each(file.own("attention.head_count_kv"), count), file.rope().rope_theta
    return {
        **corrected(file),
        **partial(file),
        "rope_parameters": None,
        "rope_theta": full,
        "swa_rope_theta": file.own("rope.freq_base_swa", full),
        "hybrid_layer_pattern": slides,
        "num_key_value_heads": kv_heads[slides.index(0)],
        "swa_num_key_value_heads": kv_heads[slides.index(1)],
        "v_head_dim": file.own("attention.value_length"),
        "attention_value_scale": scale,
        "layernorm_epsilon": file.own("attention.layer_norm_rms_epsilon"),
        "moe_layer_freq": [
            int(file.has(f"blk.{layer}.ffn_gate_inp.weight")) for layer in range(count)
        ],
    }


def _dbrx(file: Metadata) -> Fields:
    base = file.own("rope.freq_base", 10_000.0)
    return {
        "attn_config": SimpleNamespace(
            kv_n_heads=file.own("attention.head_count_kv"),
            clip_qkv=file.own("attention.clamp_kqv", None),
            rope_theta=base,
        ),
        "ffn_config": SimpleNamespace(
            moe_num_experts=file.own("expert_count"),
            moe_top_k=file.own("expert_used_count"),
            ffn_hidden_size=file.own("feed_forward_length"),
            moe_normalize_expert_weights=1.0,
        ),
    }


def _deepseek(file: Metadata) -> Fields:
    return experts(file, normed=False) | {"scoring_func": "softmax"}


def _dense(file: Metadata) -> Fields:
    """Fields of experts that no layer has."""
    counts = ("n_routed_experts", "num_experts_per_tok", "n_shared_experts")
    sizes = ("moe_intermediate_size", "n_group", "topk_group")
    return {
        **dict.fromkeys((*counts, *sizes), 1),
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
        "first_k_dense_replace": file.own("block_count"),
    }


def _deepseek2(file: Metadata) -> Fields:
    """Versions 2 and 3, distinguished by their routers. Youtu is a version 3 without experts;
    Mistral Large 3 scales its queries by their position."""
    if file.own("attention.temperature_scale", 0.0):
        return _mistral4(file)
    mixed = bool(file.own("expert_count", 0))
    usual = _SOFTMAX if mixed and not file.rows("exp_probs_b") else _SIGMOID
    third = file.own("expert_gating_func", usual) == _SIGMOID
    fields = experts(file, normed=third) if mixed else _dense(file)
    greedy = "group_limited_greedy" if fields["n_group"] > 1 else "greedy"
    return {
        **fields,
        **latent(file),
        "architectures": ["DeepseekV3ForCausalLM" if third else "DeepseekV2ForCausalLM"],
        "topk_method": "noaux_tc" if third else greedy,
        "rope_parameters": _warmed(file),
    }


def _mistral4(file: Metadata) -> Fields:
    """DeepSeek's layers and a softmax router."""
    rope = _warmed(file)
    rope.llama_4_scaling_beta = file.own("attention.temperature_scale", None)
    return {
        **experts(file, normed=True),
        **latent(file),
        "architectures": ["Mistral4ForCausalLM"],
        "rope_parameters": rope,
    }


def _over_chosen_keys(file: Metadata) -> Fields:
    """DeepSeek-V3 with an index. Layers without one use the choice of the last one that has it."""
    layers = range(file.own("block_count") - file.own("nextn_predict_layers", 0))
    indexed = [file.has(f"blk.{layer}.indexer.attn_k.weight") for layer in layers]
    types = file.own("attention.indexer.types", indexed)
    return {
        **corrected(file),
        **latent(file),
        "rope_parameters": _warmed(file),
        "index_n_heads": file.own("attention.indexer.head_count"),
        "index_head_dim": file.own("attention.indexer.key_length"),
        "index_topk": file.own("attention.indexer.top_k"),
        "indexer_types": ["full" if own else "shared" for own in types],
    }


def _jamba(file: Metadata) -> Fields:
    """State-space layers have no KV heads, layers without experts no router."""
    count, heads = file.own("block_count"), file.own("attention.head_count_kv")
    period, offset = _every([number > 0 for number in each(heads, count)])
    routed = [file.has(f"blk.{layer}.ffn_gate_inp.weight") for layer in range(count)]
    expert_period, expert_offset = _every(routed)
    layer = next(layer for layer in range(count) if file.has(f"blk.{layer}.ssm_a"))
    return {
        "num_key_value_heads": max(each(heads, count)),
        "num_experts": file.own("expert_count", 1) or 1,
        "num_experts_per_tok": file.own("expert_used_count", 1),
        "attn_layer_period": period,
        "attn_layer_offset": offset,
        "expert_layer_period": expert_period,
        "expert_layer_offset": expert_offset,
        "mamba_expand": file.own("ssm.inner_size") // file.own("embedding_length"),
        "mamba_d_state": file.own("ssm.state_size"),
        "mamba_dt_rank": file.own("ssm.time_step_rank"),
        "mamba_d_conv": file.own("ssm.conv_kernel"),
        "mamba_proj_bias": file.has(f"blk.{layer}.ssm_in.bias"),
        "mamba_conv_bias": file.has(f"blk.{layer}.ssm_conv1d.bias"),
    }


def _every(chosen: list[bool]) -> tuple[int, int]:
    """Period and offset of evenly spaced layers."""
    numbers = [layer for layer, here in enumerate(chosen) if here]
    period = numbers[1] - numbers[0] if len(numbers) > 1 else len(chosen)
    return period, numbers[0] if numbers else len(chosen)


def latent(file: Metadata) -> Fields:
    """Latent attention sizes. Newer files describe heads as cached and give the original K and V
    sizes under separate names."""
    turned = file.own("rope.dimension_count")
    return {
        "q_lora_rank": file.own("attention.q_lora_rank", None) or None,
        "kv_lora_rank": file.own("attention.kv_lora_rank"),
        "qk_rope_head_dim": turned,
        "qk_nope_head_dim": file.own("attention.key_length_mla", head_size(file)) - turned,
        "v_head_dim": file.own(
            "attention.value_length_mla", file.own("attention.value_length", None)
        ),
        "attention_bias": file.has("blk.0.attn_kv_a_mqa.bias"),
    }


def _warmed(file: Metadata) -> SimpleNamespace:
    """DeepSeek's YaRN: it scales the scores, not cos and sin."""
    rope = file.rope()
    if rope.rope_type == "yarn":
        warmth = 10.0 * file.own("rope.scaling.yarn_log_multiplier", 0.0)
        rope.mscale = rope.mscale_all_dim = warmth
        rope.attention_factor = 1.0
    return rope


def _glm4_moe(file: Metadata) -> Fields:
    normed = file.has("blk.0.attn_q_norm.weight")
    return corrected(file) | partial(file) | {"use_qk_norm": normed}


def _ernie_moe(file: Metadata) -> Fields:
    fields = experts(file, normed=True)
    return fields | {
        "use_bias": file.has("blk.0.attn_q.bias"),
        "moe_layer_start_index": fields["first_k_dense_replace"],
        "moe_layer_interval": file.own("interleave_moe_layer_step", 1),
        "moe_num_shared_experts": file.rows("ffn_gate_shexp") // fields["moe_intermediate_size"],
    }


def _hunyuan_moe(file: Metadata) -> Fields:
    return experts(file, normed=True) | {
        "use_qk_norm": file.has("blk.0.attn_q_norm.weight"),
        "num_shared_expert": file.rows("ffn_gate_shexp") // file.own("feed_forward_length"),
    }


def _gpt_oss(file: Metadata) -> Fields:
    rope = file.rope()
    rope.truncate = False
    fields = experts(file, normed=True)
    size = fields["moe_intermediate_size"]
    return fields | {"intermediate_size": size, "layer_types": None, "rope_parameters": rope}


def _minimax_m2(file: Metadata) -> Fields:
    fields = corrected(file)
    turned = file.own("rope.dimension_count")
    return fields | {
        "intermediate_size": fields["moe_intermediate_size"],
        "rotary_dim": turned,
    }


def _exaone_moe(file: Metadata) -> Fields:
    shared = file.own("expert_shared_count", 0)
    kinds = layer_kinds(file)
    return corrected(file) | {"num_shared_experts": shared, "layer_types": kinds}


def _afmoe(file: Metadata) -> Fields:
    """Files omit that every fourth layer is global, and the embedding multiplier."""
    fields = corrected(file)
    return fields | {
        "layer_types": layer_kinds(file),
        "mup_enabled": True,
        "num_dense_layers": fields["first_k_dense_replace"],
        "num_shared_experts": fields["n_shared_experts"],
        "route_norm": fields["norm_topk_prob"],
        "route_scale": fields["routed_scaling_factor"],
    }


def _llama4(file: Metadata) -> Fields:
    fields = experts(file, normed=False)
    return fields | {
        "intermediate_size": fields["moe_intermediate_size"],
        "intermediate_size_mlp": file.own("feed_forward_length"),
        "interleave_moe_layer_step": file.own("interleave_moe_layer_step", 1),
        "use_qk_norm": fields["num_experts"] != _MAVERICK,
    }


def _step35(file: Metadata) -> Fields:
    """Windowed layers have other head counts and another rope base, and rotate all channels."""
    kinds = layer_kinds(file) or []
    bases = (file.own("rope.freq_base"), file.own("rope.freq_base_swa"))
    heads = each(file.own("attention.head_count"), len(kinds))
    kv_heads = each(file.own("attention.head_count_kv"), len(kinds))
    local = [kind == "sliding_attention" for kind in kinds]
    full, near = local.index(False), local.index(True)
    dense = file.own("leading_dense_block_count", 0)
    return {
        "layer_types": kinds,
        "num_attention_heads": heads[full],
        "num_attention_groups": kv_heads[full],
        "attention_other_setting": SimpleNamespace(
            num_attention_heads=heads[near], num_attention_groups=kv_heads[near]
        ),
        "rope_theta": [bases[near] for near in local],
        "partial_rotary_factors": [1.0 if near else 0.5 for near in local],
        "rope_parameters": None,
        "use_head_wise_attn_gate": file.has("blk.0.attn_gate.weight"),
        "moe_num_experts": file.own("expert_count"),
        "moe_top_k": file.own("expert_used_count"),
        "moe_intermediate_size": file.own("expert_feed_forward_length"),
        "share_expert_dim": file.own("expert_shared_feed_forward_length"),
        "moe_layers_enum": list(range(dense, len(kinds))),
        "moe_router_scaling_factor": file.own("expert_weights_scale", 1.0),
        "norm_expert_weight": file.own("expert_weights_norm", True),
        "use_moe_router_bias": bool(file.rows("exp_probs_b")),
        "swiglu_limits": file.own("swiglu_clamp_exp", None),
        "swiglu_limits_shared": file.own("swiglu_clamp_shexp", None),
    }


def _phimoe(file: Metadata) -> Fields:
    """The router's jitter is not in files."""
    window = file.own("attention.sliding_window", 0)
    bias = {"lm_head_bias": file.has("output.bias")}
    return experts(file, normed=True) | bias | {"sliding_window": window or None}


def _mellum(file: Metadata) -> Fields:
    return experts(file, normed=True) | {
        "layer_types": _kinds(file),
        "rope_parameters": ropes(file),
    }


def _kinds(file: Metadata, *, full_first: bool = False) -> list[str] | None:
    """The layer types; without a list every fourth layer has no window, the first or the last."""
    if file.own("attention.sliding_window", None) is None:
        return None
    every = file.own("attention.sliding_window_pattern", 4)
    if isinstance(every, list):
        return layer_kinds(file)
    full = 0 if full_first else every - 1
    return [
        "full_attention" if layer % every == full else "sliding_attention"
        for layer in range(file.own("block_count"))
    ]


def _laguna(file: Metadata) -> Fields:
    """Gates are as many as heads, or as channels."""
    heads = each(file.own("attention.head_count"), file.own("block_count"))
    per_head = file.rows("attn_gate") == heads[0]
    fields = corrected(file)
    return {
        **fields,
        "num_attention_heads_per_layer": heads,
        "gating": "per-head" if per_head else "per-element",
        "layer_types": _kinds(file, full_first=True),
        "rope_parameters": ropes(file),
        "moe_routed_scaling_factor": fields["routed_scaling_factor"],
        "shared_expert_intermediate_size": file.own("expert_shared_feed_forward_length"),
    }


def _hunyuan_v3(file: Metadata) -> Fields:
    fields = corrected(file)
    size, shared = fields["moe_intermediate_size"], file.rows("ffn_gate_shexp")
    dense, count = fields["first_k_dense_replace"], file.own("block_count")
    return fields | {
        "num_shared_experts": shared // size,
        "mlp_layer_types": ["sparse" if layer >= dense else "dense" for layer in range(count)],
        "router_scaling_factor": fields["routed_scaling_factor"],
    }


def _bailing2(file: Metadata) -> Fields:
    fields = corrected(file)
    count = fields["n_shared_experts"]
    return {
        **partial(file),
        **fields,
        "use_qkv_bias": file.has("blk.0.attn_qkv.bias"),
        "use_qk_norm": file.has("blk.0.attn_q_norm.weight"),
        "num_shared_experts": count,
        "moe_shared_expert_intermediate_size": file.rows("ffn_gate_shexp") // max(1, count),
        "moe_router_enable_expert_bias": bool(file.rows("exp_probs_b")),
    }


def _cohere2_moe(file: Metadata) -> Fields:
    """Norms are RMS norms if the file has their epsilon."""
    fields = experts(file, normed=False)
    gate = file.own("expert_gating_func", _SIGMOID)
    return {
        **fields,
        "rms_norm_eps": file.own("attention.layer_norm_rms_epsilon", None),
        "layer_norm_eps": file.own("attention.layer_norm_epsilon", 1e-5),
        "intermediate_size": fields["moe_intermediate_size"],
        "prefix_dense_intermediate_size": file.own("feed_forward_length"),
        "num_shared_experts": fields["n_shared_experts"],
        "expert_selection_fn": {_SOFTMAX: "softmax", _SIGMOID: "sigmoid"}.get(gate, str(gate)),
        "layer_types": layer_kinds(file),
        "logit_scale": file.own("logit_scale"),
    }


MIXTURES: dict[str, Family] = {
    "llama with experts": Family("MixtralForCausalLM", _normed, permuted=True),
    "qwen2moe": Family("Qwen2MoeForCausalLM", _qwen2_moe),
    "qwen3moe": Family("Qwen3MoeForCausalLM", _normed),
    "qwen3vlmoe": Family("Qwen3MoeForCausalLM", _normed),
    "olmoe": Family("OlmoeForCausalLM", _plain),
    "granitemoe": Family("GraniteMoeSharedForCausalLM", _granite_moe, permuted=True),
    "dbrx": Family("DbrxForCausalLM", _dbrx),
    "mimo2": Family("MiMoV2FlashForCausalLM", _mimo2, per_layer=True),
    "deepseek": Family("DeepseekForCausalLM", _deepseek, permuted=True),
    "deepseek2": Family("DeepseekV2ForCausalLM", _deepseek2),  # and version 3, GLM-4.7-Flash
    "mistral4": Family("Mistral4ForCausalLM", _mistral4),
    "glm-dsa": Family("GlmMoeDsaForCausalLM", _over_chosen_keys),
    "deepseek32": Family("DeepseekV32ForCausalLM", _over_chosen_keys, names_of="glm-dsa"),
    "dots1": Family("Dots1ForCausalLM", corrected),
    "glm4moe": Family("Glm4MoeForCausalLM", _glm4_moe),
    "ernie4_5-moe": Family("Ernie4_5_MoeForCausalLM", _ernie_moe),
    "hunyuan-moe": Family("HunYuanMoEV1ForCausalLM", _hunyuan_moe),
    "gpt-oss": Family("GptOssForCausalLM", _gpt_oss),
    "minimax-m2": Family("MiniMaxM2ForCausalLM", _minimax_m2),
    "exaone-moe": Family("ExaoneMoeForCausalLM", _exaone_moe),
    "afmoe": Family("AfmoeForCausalLM", _afmoe),
    "jamba": Family("JambaForCausalLM", _jamba, per_layer=True),
    "llama4": Family("Llama4ForCausalLM", _llama4),
    "bailingmoe2": Family("BailingMoeV2ForCausalLM", _bailing2),
    "phimoe": Family("PhimoeForCausalLM", _phimoe),
    "laguna": Family("LagunaForCausalLM", _laguna, per_layer=True, names_of="dots1"),
    "mellum": Family("MellumForCausalLM", _mellum, names_of="qwen3moe"),
    "hy_v3": Family("HYV3ForCausalLM", _hunyuan_v3, names_of="dots1"),
    "cohere2moe": Family("Cohere2MoeForCausalLM", _cohere2_moe, names_of="dots1"),
    "step35": Family("Step3p5ForCausalLM", _step35, norms_plus_one=True, per_layer=True),
}
"""By `general.architecture`."""
