"""Rows of decoders that mix attention with recurrent layers, see `gguf.families`.

Files say the kind of a layer by the tensors that it has.
"""

from __future__ import annotations

from types import SimpleNamespace

from baton_worker.checkpoint.gguf.metadata import Family, Fields, Metadata, each, partial
from baton_worker.checkpoint.gguf.moe_families import corrected, experts, granite, latent


def _layers_with(file: Metadata, part: str) -> list[bool]:
    """Whether each layer has a tensor of this name."""
    count = file.own("block_count") - file.own("nextn_predict_layers", 0)
    return [file.has(f"blk.{layer}.{part}") for layer in range(count)]


def _has(file: Metadata, part: str) -> bool:
    return any(_layers_with(file, part))


def _kinds(file: Metadata, part: str, recurrent: str) -> Fields:
    """Layer types where recurrent layers have a tensor of this name, and the number of KV heads of
    the others."""
    kv_heads = each(file.own("attention.head_count_kv"), 1)
    here = _layers_with(file, part)
    return {
        "layer_types": [recurrent if yes else "full_attention" for yes in here],
        "num_key_value_heads": max(kv_heads),
        "attention_bias": _has(file, "attn_q.bias"),
    }


def _lfm2(file: Metadata) -> Fields:
    return _kinds(file, "shortconv.conv.weight", "conv") | {
        "norm_eps": file.own("attention.layer_norm_rms_epsilon"),
        "conv_L_cache": file.own("shortconv.l_cache"),
        "conv_bias": _has(file, "shortconv.conv.bias"),
        "block_auto_adjust_ff_dim": False,
    }


def _lfm2_moe(file: Metadata) -> Fields:
    fields = corrected(file)
    return {
        **fields,
        **_lfm2(file),
        "num_dense_layers": fields["first_k_dense_replace"],
        "use_expert_bias": bool(file.rows("exp_probs_b")),
    }


def _delta(file: Metadata) -> Fields:
    """Gated delta nets; their heads are described as those of a state space."""
    num_heads = file.own("ssm.time_step_rank")
    return {
        **partial(file),
        **_kinds(file, "ssm_a", "linear_attention"),
        "linear_conv_kernel_dim": file.own("ssm.conv_kernel"),
        "linear_key_head_dim": file.own("ssm.state_size"),
        "linear_value_head_dim": file.own("ssm.inner_size") // num_heads,
        "linear_num_key_heads": file.own("ssm.group_count"),
        "linear_num_value_heads": num_heads,
    }


def _delta_moe(file: Metadata) -> Fields:
    shared = file.own("expert_shared_feed_forward_length")
    fields = experts(file, normed=True) | {"shared_expert_intermediate_size": shared}
    return fields | _delta(file)


def _kimi_linear(file: Metadata) -> Fields:
    """Delta nets with one decay per channel, and latent attention."""
    heads = file.own("attention.head_count")
    return {
        **corrected(file),
        **latent(file),
        **_kinds(file, "ssm_a", "linear_attention"),
        "num_key_value_heads": heads,
        "linear_attn_config": SimpleNamespace(
            num_heads=heads,
            head_dim=file.own("kda.head_dim"),
            short_conv_kernel_size=file.own("ssm.conv_kernel"),
        ),
    }


def _state_space(file: Metadata) -> Fields:
    """Sizes of Mamba-2 under the names of models that have attention too."""
    return {
        "mamba_expand": file.own("ssm.inner_size") / file.own("embedding_length"),
        "mamba_d_state": file.own("ssm.state_size"),
        "mamba_d_conv": file.own("ssm.conv_kernel"),
        "mamba_n_heads": file.own("ssm.time_step_rank"),
        "mamba_n_groups": file.own("ssm.group_count"),
        "mamba_proj_bias": _has(file, "ssm_in.bias"),
        "mamba_conv_bias": _has(file, "ssm_conv1d.bias"),
    }


def _bamba(file: Metadata) -> Fields:
    attends = _layers_with(file, "attn_q.weight")
    return {
        "architectures": ["BambaForCausalLM"],
        **_state_space(file),
        **_kinds(file, "ssm_a", "mamba"),
        **partial(file),
        "attn_layer_indices": [layer for layer, yes in enumerate(attends) if yes],
    }


def _granite_hybrid(file: Metadata) -> Fields:
    """Granite 4, and Bamba, whose queries and keys are rotated. Without experts the shared one is
    the feed-forward."""
    if file.own("rope.scaling.finetuned", False):
        return _bamba(file)
    mixed = file.own("expert_count", 0)
    return {
        **(experts(file, normed=True) if mixed else {"num_local_experts": 0}),
        **granite(file),
        **_state_space(file),
        **_kinds(file, "ssm_a", "mamba"),
        "shared_intermediate_size": file.rows("ffn_gate_shexp" if mixed else "ffn_gate"),
        "position_embedding_type": "nope",
    }


def _falcon_h1(file: Metadata) -> Fields:
    """The converter multiplies the weights by the multipliers of the config."""
    return {
        **_state_space(file),
        "mamba_d_ssm": file.own("ssm.inner_size"),
        "mamba_rms_norm": _has(file, "ssm_norm.weight"),
        "mamba_norm_before_gate": False,
        "projectors_bias": _has(file, "ssm_out.bias"),
    }


def _mamba2(file: Metadata) -> Fields:
    """The epsilon is that of an RMS norm, also where files of Nemotron-H name it otherwise."""
    num_heads = file.own("ssm.time_step_rank")
    eps = file.own("attention.layer_norm_epsilon", None)
    return {
        "num_heads": num_heads,
        "head_dim": file.own("ssm.inner_size") // num_heads,
        "state_size": file.own("ssm.state_size"),
        "n_groups": file.own("ssm.group_count"),
        "conv_kernel": file.own("ssm.conv_kernel"),
        "layer_norm_epsilon": eps or file.own("attention.layer_norm_rms_epsilon"),
        "hidden_act": "silu",
        "use_bias": _has(file, "ssm_in.bias"),
        "use_conv_bias": _has(file, "ssm_conv1d.bias"),
    }


def _plamo2(file: Metadata) -> Fields:
    """All norms are stored as factors. Files give no window, and llama.cpp has none."""
    kinds = _kinds(file, "ssm_a", "mamba")
    return kinds | {
        "norm_offset": 0.0,
        "full_attention_idx": list(range(len(kinds["layer_types"]))),
        "hidden_size_per_head": file.own("attention.key_length"),
        "mamba_num_heads": file.own("ssm.time_step_rank"),
        "mamba_d_state": file.own("ssm.state_size"),
        "mamba_d_conv": file.own("ssm.conv_kernel"),
    }


_NEMOTRON_PARTS = {"M": "ssm_a", "*": "attn_q.weight", "E": "ffn_gate_inp.weight"}
"""A tensor of each kind of layer; the others are dense feed-forwards."""


def _nemotron_h(file: Metadata) -> Fields:
    """Each layer is a mixer or a feed-forward."""
    here = {kind: _layers_with(file, part) for kind, part in _NEMOTRON_PARTS.items()}
    pattern = [
        next((kind for kind, layers in here.items() if layers[number]), "-")
        for number in range(len(here["M"]))
    ]
    mamba = _mamba2(file)
    return {
        **mamba,
        "hybrid_override_pattern": "".join(pattern),
        "num_key_value_heads": max(each(file.own("attention.head_count_kv"), 1)),
        "intermediate_size": file.rows("ffn_up"),
        "mamba_num_heads": mamba["num_heads"],
        "mamba_head_dim": mamba["head_dim"],
        "ssm_state_size": mamba["state_size"],
        "head_dim": file.own("attention.key_length"),
    }


def _nemotron_h_moe(file: Metadata) -> Fields:
    return (
        corrected(file)
        | _nemotron_h(file)
        | {
            "moe_shared_expert_intermediate_size": file.rows("ffn_up_shexp"),
            "moe_latent_size": file.own("moe_latent_size", None),
        }
    )


HYBRIDS: dict[str, Family] = {
    "lfm2": Family("Lfm2ForCausalLM", _lfm2, per_layer=True),
    "lfm2moe": Family("Lfm2MoeForCausalLM", _lfm2_moe, per_layer=True),
    "qwen3next": Family("Qwen3NextForCausalLM", _delta_moe, norms_plus_one=True, per_layer=True),
    "qwen35": Family("Qwen3_5ForCausalLM", _delta, norms_plus_one=True, per_layer=True, tiled=True),
    "qwen35moe": Family(
        "Qwen3_5MoeForCausalLM", _delta_moe, norms_plus_one=True, per_layer=True, tiled=True
    ),
    "kimi-linear": Family("KimiLinearForCausalLM", _kimi_linear, per_layer=True),
    "granitehybrid": Family(
        "GraniteMoeHybridForCausalLM", _granite_hybrid, permuted=True, per_layer=True
    ),
    "falcon-h1": Family("FalconH1ForCausalLM", _falcon_h1),
    "plamo2": Family("Plamo2ForCausalLM", _plamo2, per_layer=True),
    "mamba2": Family("Mamba2ForCausalLM", _mamba2),
    "nemotron_h": Family("NemotronHForCausalLM", _nemotron_h, per_layer=True),
    "nemotron_h_moe": Family("NemotronHForCausalLM", _nemotron_h_moe, per_layer=True),
}
"""By `general.architecture`."""
