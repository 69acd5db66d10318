"""Bounds of a checkpoint's sizes and types of its fields, checked before anything is allocated.

An untrusted file may ask for a billion layers. Every bound is far above what any published model
has.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

from baton.errors import ModelError


class Bound(NamedTuple):
    """Least and most of a size."""

    least: int
    most: int


_LAYERS, _WIDTH, _INNER = Bound(1, 4096), Bound(1, 2**22), Bound(0, 2**23)
_COUNT, _TOKENS = Bound(0, 2**17), Bound(1, 2**25)
_NAMES = {
    _LAYERS: "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers "
    "num_blocks conf_num_hidden_layers",
    _WIDTH: "hidden_size n_embd d_model hidden_dim input_dim output_dim output_size",
    _INNER: "intermediate_size ffn_hidden_size moe_intermediate_size encoder_ffn_dim "
    "alignment_intermediate_size embed_dim expert_ffn_hidden_size ffn_dim "
    "hidden_size_per_layer_input out_hidden_size "
    "intermediate_size_mlp mamba_d_ssm mlp_dim moe_latent_size "
    "moe_shared_expert_intermediate_size n_inner projector_hidden_size share_expert_dim "
    "shared_expert_intermediate_size shared_intermediate_size word_embed_proj_dim",
    _COUNT: "num_attention_heads n_head num_key_value_heads head_dim num_experts num_local_experts "
    "n_routed_experts num_experts_per_tok n_shared_experts num_nextn_predict_layers "
    "encoder_attention_heads decoder_attention_heads num_mel_bins input_feat_size input_size "
    "conf_num_attention_heads num_heads n_heads kernel_size conv_kernel conv_kernel_size "
    "conf_conv_kernel_size n_window n_window_infer downsample_hidden_size nemo_conv_channels "
    "context_size max_pos_emb bias_max_distance altup_num_inputs attn_layer_offset "
    "attn_layer_period decoder_sparse_step expert_layer_offset "
    "expert_layer_period first_k_dense_replace index_head_dim index_n_heads index_topk "
    "kv_lora_rank kv_n_heads laurel_rank linear_conv_kernel_dim linear_key_head_dim "
    "linear_num_key_heads linear_num_value_heads linear_value_head_dim mamba_d_conv "
    "mamba_d_head mamba_d_state mamba_dt_rank mamba_head_dim mamba_n_groups "
    "mamba_n_heads mamba_ngroups mamba_num_heads moe_k moe_num_experts moe_num_shared_experts "
    "moe_top_k moe_topk n_group n_groups n_mamba_heads no_rope_layer_interval num_dense_layers "
    "num_kv_heads num_kv_shared_layers num_shared_experts patch_size q_lora_rank "
    "qk_nope_head_dim qk_rope_head_dim spatial_merge_size ssm_state_size state_size "
    "swa_num_key_value_heads temporal_patch_size time_step_rank topk_group v_head_dim "
    "zero_expert_num",
    _TOKENS: "vocab_size max_source_positions max_target_positions",
    Bound(0, 2**25): "num_position_embeddings type_vocab_size vocab_size_per_layer_input",
    Bound(1, 2**31): "max_position_embeddings n_positions",
}
BOUNDS = {name: bound for bound, names in _NAMES.items() for name in names.split()}
"""By the name in config.json."""
_FLOATS = ("max_position_embeddings",)
"""Sizes that may be written as floats, as beside Music Flamingo's language model."""
_WORDS = {"mamba_dt_rank": "auto", "time_step_rank": "auto"}
"""Sizes that may be a word."""
_FIELDS: dict[tuple[str, tuple[type, ...]], str] = {
    ("a string", (str,)): "activation activation_function attn_type bnb_4bit_quant_type "
    "classifier_pooling conv_activation hidden_act hidden_activation mamba_hidden_act "
    "mlp_hidden_act model_type moe_router_activation nemo_activation position_embedding_type "
    "projector_act projector_hidden_act qk_norm_type quant_method rope_type scoring_func "
    "topk_method "
    "vision_feature_select_strategy",
    ("an integer", (int,)): "additional_vocab_size altup_active_idx attention_chunk_size "
    "audio_token_id audio_token_index chunk_size eoa_token_id eoi_token_id "
    "image_end_token_id image_start_token_id image_token_id image_token_index "
    "max_window_layers media_placeholder_token_id pad_token_id video_token_id",
    ("a number", (int, float)): "adapter_layer_norm_eps alpha attention_factor "
    "attention_multiplier attn_logit_softcapping attn_scale beta_fast beta_slow clip_qkv "
    "dim_model_base embedding_multiplier expand factor final_logit_softcapping "
    "high_freq_factor key_multiplier layer_norm_eps layer_norm_epsilon lm_head_multiplier "
    "logits_scaling low_freq_factor mamba_expand mixer_rms_eps moe_router_scaling_factor "
    "mscale mscale_all_dim norm_eps norm_epsilon original_max_position_embeddings "
    "partial_rotary_factor query_pre_attn_scalar residual_multiplier rms_norm_eps "
    "rotary_emb_base rotary_pct route_scale routed_scaling_factor scale_depth scale_emb "
    "softmax_scale swiglu_alpha time_step_min",
    ("true or false", (bool, int)): "add_bias_linear alibi "
    "apply_residual_connection_post_layernorm attention_bias attention_out_bias "
    "attn_temperature_tuning conv_bias enable_bias layer_norm_elementwise_affine mamba_conv_bias "
    "mamba_norm_before_gate mamba_proj_bias mamba_rms_norm mlp_bias multi_query mup_enabled "
    "new_decoder_architecture norm_topk_prob parallel_attn projector_bias qk_layernorm "
    "rope_interleave scale_attn_by_inverse_layer_idx scale_attn_weights tie_word_embeddings "
    "use_bias use_conv_bias use_expert_bias use_parallel_residual use_qk_norm use_sliding_window",
    ("a list", (list,)): "attn_layer_indices block_configs cross_attention_layers "
    "deepstack_visual_indexes depths full_attn_idxs fullatt_block_indexes image_grid_pinpoints "
    "layer_types layers_block_type mlp_layer_types mlp_only_layers mrope_section "
    "mtp_layer_types no_rope_layers ssm_multipliers time_step_limit weight_block_size",
    ("an object", (SimpleNamespace,)): "attn_config audio_config config_groups ffn_config id2label "
    "kv_cache_scheme quantization_config rope_parameters rope_scaling text_config "
    "thinker_config vision_config vq_config",
}
KINDS = {name: kind for kind, names in _FIELDS.items() for name in names.split()}
"""What a field must be, in words, and its types, by the name in config.json."""


def check_kind(name: str, value: Any, where: str) -> None:
    """Check the JSON type of a field. It may be null, and one that is not listed may be anything:
    what a layer cannot be built from is refused there.

    Raises:
        ModelError: it is another than every architecture's.
    """
    words, types = KINDS.get(name, ("", ()))
    odd = isinstance(value, bool) and bool not in types
    if types and value is not None and (odd or not isinstance(value, types)):
        raise ModelError(f"{where}: {name} must be {words}, not {shown(value)}.")


def shown(value: Any) -> str:
    """A value of a config, for a sentence."""
    if isinstance(value, SimpleNamespace):
        return "an object"
    return "a list" if isinstance(value, list | tuple) else repr(str(value)[:40])


def check_sizes(config: SimpleNamespace, where: str = "config.json") -> None:
    """Check the sizes of a configuration and of those inside it.

    Raises:
        ModelError: one of them is no integer, negative, or larger than any model's, a field has
            another type than in any architecture, or the experts per token exceed those of their
            groups.
    """
    for name, value in vars(config).items():
        check_kind(name, value, where)
        if isinstance(value, SimpleNamespace) and name not in BOUNDS:
            check_sizes(value, f"{where}, {name}")
        elif name in BOUNDS and value is not None and value != _WORDS.get(name):
            for one in value if isinstance(value, list) else [value]:
                _check(name, one, where)
    _check_groups(config, where)


def suspects(config: SimpleNamespace) -> list[str]:
    """The sizes that are null, 0 or lists: what may be at fault if no model can be made of a
    config."""
    found = list[str]()
    for name, value in vars(config).items():
        if isinstance(value, SimpleNamespace):
            found += suspects(value)
        elif name in BOUNDS and (value is None or value == 0):
            found.append(f"{name} is {'null' if value is None else value}")
        elif name in BOUNDS and isinstance(value, list):
            found.append(f"{name} is a list")
    return found


def _check_groups(config: SimpleNamespace, where: str) -> None:
    """Check that the groups of experts that take part have as many as a token is sent to."""
    experts = getattr(config, "n_routed_experts", None) or getattr(config, "num_experts", None)
    names = ("n_group", "topk_group", "num_experts_per_tok")
    sizes = [experts or 1, *(getattr(config, name, None) or 1 for name in names)]
    grouped = sizes[1] != 1 and getattr(config, "topk_method", "") != "greedy"
    if experts is None or not grouped or not all(isinstance(size, int) for size in sizes):
        return
    experts, groups, best, top = sizes
    if experts % groups or top > best * (experts // groups):
        raise ModelError(
            f"{where}: {top} of {experts} experts cannot be chosen in {best} of {groups} groups "
            "(num_experts_per_tok, n_routed_experts, topk_group, n_group)."
        )


def _check(name: str, value: Any, where: str) -> None:
    least, most = BOUNDS[name]
    if name in _FLOATS and isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ModelError(f"{where}: {name} must be an integer, not {shown(value)}.")
    if not least <= value <= most:
        raise ModelError(
            f"{where}: {name} is {str(value)[:40]}; a model has between {least} and {most}."
        )
