"""The JSON types of a config's fields, by their names, which mean the same in all architectures.

A field may be null, and one that is not listed may be anything: what a layer cannot be built from
is refused there.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from baton.errors import ModelError

_FIELDS: dict[tuple[str, tuple[type, ...]], str] = {
    ("a string", (str,)): "activation activation_function attn_type bnb_4bit_quant_type "
    "classifier_pooling "
    "conv_activation hidden_act hidden_activation mamba_hidden_act mlp_hidden_act model_type "
    "moe_router_activation nemo_activation position_embedding_type projector_act "
    "projector_hidden_act qk_norm_type quant_method rope_type scoring_func topk_method "
    "vision_feature_select_strategy",
    ("an integer", (int,)): "additional_vocab_size altup_active_idx attention_chunk_size "
    "audio_token_id audio_token_index chunk_size eoa_token_id eoi_token_id "
    "image_end_token_id image_start_token_id image_token_id image_token_index "
    "max_window_layers media_placeholder_token_id moe_layer_end_index moe_layer_start_index "
    "pad_token_id video_token_id",
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
    """Check the JSON type of a field.

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
