"""Tiny random models and tokenizers with odd traits switched on: built, never downloaded.

transformers and tokenizers are imported inside the functions, so that importing this file costs
nothing to the tests of services that have neither.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support import (
    delta_net_models,
    moe_models,
    state_space_models,
    vision_language_models,
)

VOCAB_SIZE = 320
MAX_LENGTH = 256

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

IGNORED_SHARE = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5}
"""Rope parameters with a key that classes which turn whole heads do not read."""

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_LENGTH,
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}

# The odd traits of each architecture; every one has at least two layers.
TRAITS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {
        "attention_bias": True,
        "mlp_bias": True,
        "rope_parameters": LLAMA3_ROPE,
        "tie_word_embeddings": False,
    },
    "MistralForCausalLM": {"head_dim": 16, "sliding_window": 12, "tie_word_embeddings": False},
    "Qwen2ForCausalLM": {
        "use_sliding_window": True,
        "sliding_window": 9,
        "max_window_layers": 2,
        "tie_word_embeddings": True,
    },
    "Qwen3ForCausalLM": {"head_dim": 16, "attention_bias": True, "tie_word_embeddings": True},
    "ArceeForCausalLM": {"attention_bias": True, "mlp_bias": True},
    "SeedOssForCausalLM": {
        "head_dim": 12,
        "attention_bias": True,
        "attention_out_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": True,
    },
    "Ernie4_5ForCausalLM": {"head_dim": 16, "use_bias": True, "tie_word_embeddings": True},
    "HunYuanDenseV1ForCausalLM": {
        "head_dim": 16,
        "attention_bias": True,
        "rope_parameters": {
            "rope_type": "dynamic",
            "alpha": 1000.0,
            "factor": 1.0,
            "rope_theta": 10_000.0,
        },
    },
    "GraniteForCausalLM": {
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.6,
        "attention_multiplier": 0.2,
        "logits_scaling": 2.5,
        "attention_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": True,
    },
    "GemmaForCausalLM": {"head_dim": 16, "attention_bias": True},
    "Gemma2ForCausalLM": {
        "head_dim": 16,
        "sliding_window": 9,
        "query_pre_attn_scalar": 24,
        "attn_logit_softcapping": 3.0,
        "final_logit_softcapping": 5.0,
    },
    "Gemma3nForCausalLM": {
        "head_dim": 16,
        "num_hidden_layers": 6,
        "intermediate_size": [40, 40, 56, 40, 40, 40],
        "sliding_window": 9,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
        "num_kv_shared_layers": 2,
        "vocab_size_per_layer_input": 150,
        "hidden_size_per_layer_input": 8,
        "altup_num_inputs": 3,
        "laurel_rank": 6,
        "activation_sparsity_pattern": [0.8, 0.5, 0.0, 0.0, 0.0, 0.0],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 100_000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1_000.0},
        },
    },
    "Gemma3ForCausalLM": {
        "head_dim": 16,
        "num_hidden_layers": 6,
        "sliding_window": 9,
        "query_pre_attn_scalar": 24,
        "initializer_range": 0.15,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 100_000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1_000.0},
        },
    },
    "PhiForCausalLM": {"qk_layernorm": True, "partial_rotary_factor": 0.5},
    "Phi3ForCausalLM": {
        "sliding_window": 30,
        "original_max_position_embeddings": 1,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10_000.0,
            "partial_rotary_factor": 0.5,
            "attention_factor": 1.2,
            "short_factor": [1.0, 1.5],
            "long_factor": [2.0, 3.5],
        },
    },
    "OlmoForCausalLM": {"clip_qkv": 1.5, "attention_bias": True},
    "Olmo2ForCausalLM": {"attention_bias": True},
    "CohereForCausalLM": {
        "use_qk_norm": True,
        "attention_bias": True,
        "logit_scale": 0.25,
        "rope_parameters": IGNORED_SHARE,
    },
    "Cohere2ForCausalLM": {
        "num_hidden_layers": 4,
        "sliding_window": 9,
        "attention_bias": True,
        "logit_scale": 0.25,
    },
    "SmolLM3ForCausalLM": {
        "num_hidden_layers": 4,
        "attention_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": True,
    },
    "Jais2ForCausalLM": {"rope_parameters": IGNORED_SHARE},
    "GlmForCausalLM": {"head_dim": 16, "partial_rotary_factor": 0.5, "attention_bias": True},
    "Glm4ForCausalLM": {"head_dim": 16, "partial_rotary_factor": 0.5, "attention_bias": True},
    "Exaone4ForCausalLM": {
        "num_hidden_layers": 4,
        "num_attention_heads": 10,
        "num_key_value_heads": 2,
        "hidden_size": 80,
        "sliding_window": 9,
        "sliding_window_pattern": 4,
    },
    "GPT2LMHeadModel": {"num_key_value_heads": None, "n_inner": 80},
    "GPTNeoXForCausalLM": {
        "num_key_value_heads": None,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000.0,
            "partial_rotary_factor": 0.25,
        },
        "hidden_size": 96,
    },
    "OPTForCausalLM": {
        "num_key_value_heads": None,
        "ffn_dim": 80,
        "word_embed_proj_dim": 32,
        "do_layer_norm_before": False,
        "init_std": 0.3,
    },
    "BloomForCausalLM": {
        "num_key_value_heads": None,
        "n_layer": 3,
        "n_head": 6,
        "apply_residual_connection_post_layernorm": True,
    },
    "FalconForCausalLM": {
        "num_key_value_heads": None,
        "new_decoder_architecture": True,
        "num_kv_heads": 2,
        "bias": True,
    },
    "MptForCausalLM": {
        "num_key_value_heads": None,
        "d_model": 48,
        "n_heads": 6,
        "n_layers": 3,
        "max_seq_len": MAX_LENGTH,
        "attn_config": {"clip_qkv": 1.5},
    },
    "Starcoder2ForCausalLM": {"sliding_window": 9, "use_bias": True},
    "PersimmonForCausalLM": {"num_key_value_heads": None, "partial_rotary_factor": 0.5},
    "StableLmForCausalLM": {
        "hidden_size": 96,
        "use_qkv_bias": True,
        "qk_layernorm": True,
        "partial_rotary_factor": 0.25,
    },
    "NemotronForCausalLM": {
        "partial_rotary_factor": 0.5,
        "attention_bias": True,
        "mlp_bias": True,
        "head_dim": 8,
    },
    "MambaForCausalLM": {
        "num_hidden_layers": 4,
        "intermediate_size": 96,
        "state_size": 6,
        "time_step_rank": 5,
        "conv_kernel": 3,
        "use_bias": True,
        "tie_word_embeddings": False,
    },
    "FalconMambaForCausalLM": {"intermediate_size": 96, "mixer_rms_eps": 1e-3},
}

# Architectures without a spec, which run in the code of transformers.
UNLISTED: dict[str, dict[str, Any]] = {
    "AriaTextForCausalLM": {},
    "BeamForCausalLM": {},
    "BitNetForCausalLM": {},
    "CTRLLMHeadModel": {},
    "DiffLlamaForCausalLM": {},
    "DoryForCausalLM": {},
    "FuyuForCausalLM": {},
    "Gemma4UnifiedForCausalLM": {},
    "ModernBertDecoderForCausalLM": {"pad_token_id": 2},
    "MiniMaxM3VLForCausalLM": {},
}

EXAMPLE_UNLISTED = "BitNetForCausalLM"
"""One of them that is much like Llama, for tests of one."""

# Relatives of architectures above; tests of several each compare them as those are compared.
RELATIVES: dict[str, dict[str, Any]] = {
    "BioGptForCausalLM": {"num_key_value_heads": None},
    "GPTNeoXJapaneseForCausalLM": {
        "num_key_value_heads": None,
        "intermediate_multiple_size": 2,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 500.0,
            "partial_rotary_factor": 0.5,
        },
    },
    "OpenAIGPTLMHeadModel": {"num_key_value_heads": None, "afn": "relu"},
    "XGLMForCausalLM": {"num_key_value_heads": None, "ffn_dim": 80},
    "ApertusForCausalLM": {"rope_parameters": LLAMA3_ROPE, "attention_bias": True},
    "Apertus1p5TextForCausalLM": {"rope_parameters": LLAMA3_ROPE, "hidden_act": "relu2"},
    "Cohere2MoeForCausalLM": {
        "num_hidden_layers": 6,
        "head_dim": 8,
        "sliding_window": 9,
        "first_k_dense_replace": 2,
        "prefix_dense_sliding_window_pattern": 1,
        "prefix_dense_intermediate_size": 56,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "num_shared_experts": 2,
        "attention_bias": True,
    },
    "FlintForCausalLM": {
        "head_dim": 8,
        "num_hidden_layers": 5,
        "sliding_window": 9,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 40,
    },
    "HyperCLOVAXForCausalLM": {
        "head_dim": 8,
        "embedding_multiplier": 3.0,
        "attention_multiplier": 0.2,
        "residual_multiplier": 0.6,
        "logits_scaling": 0.5,
    },
    "Kolibri1ForCausalLM": {
        "head_dim": 8,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "sliding_window": 9,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "norm_topk_prob": True,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 40,
    },
    "LagunaForCausalLM": {
        "head_dim": 16,
        "num_attention_heads_per_layer": [4, 6, 8],
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        "sliding_window": 9,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 40,
        "moe_routed_scaling_factor": 1.5,
        "moe_router_logit_softcapping": 3.0,
        "attention_bias": True,
    },
    "Lfm3ForCausalLM": {
        "head_dim": 8,
        "num_hidden_layers": 6,
        "sliding_window": 9,
        "conv_L_cache": 4,
        "conv_bias": True,
        "attention_bias": True,
    },
    "MellumForCausalLM": {
        "head_dim": 8,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "sliding_window": 9,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 24,
        "rope_parameters": {
            "full_attention": {
                "rope_type": "yarn",
                "rope_theta": 10_000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
        },
    },
    "CodeGenForCausalLM": {
        "num_attention_heads": 8,
        "num_key_value_heads": None,
        "hidden_size": 64,
        "rotary_dim": 4,
        "n_inner": 80,
        "tie_word_embeddings": False,
    },
    "CwmForCausalLM": {
        "head_dim": 8,
        "num_hidden_layers": 5,
        "sliding_window": 9,
    },
    "FlexOlmoForCausalLM": {
        "num_experts": 5,
        "num_experts_per_tok": 2,
        "attention_bias": True,
        "tie_word_embeddings": False,
    },
    "GPTBigCodeForCausalLM": {"num_key_value_heads": None, "n_inner": 80},
    "GraniteMoeSWAForCausalLM": {
        "sliding_window": 9,
        "num_hidden_layers": 5,
        "layer_rope_theta": [0, 10_000.0, 500.0, 10_000.0, 0],
        "num_local_experts": 8,
        "num_experts_per_tok": 3,
        "shared_intermediate_size": 28,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.4,
        "attention_multiplier": 0.2,
        "logits_scaling": 1.6,
    },
    "GraniteSWAForCausalLM": {
        "sliding_window": 9,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "layer_rope_theta": [10_000.0, 0, 500.0],
        "attention_multiplier": 0.2,
        "mlp_bias": True,
    },
    "HeliumForCausalLM": {"head_dim": 8, "attention_bias": True} | {"mlp_bias": True},
    "GPTJForCausalLM": {"rotary_dim": 8, "tie_word_embeddings": False},
    "GPTNeoForCausalLM": {"attention_types": [[["global", "local"], 1], [["local"], 1]]}
    | {"window_size": 9},
    "HYV3ForCausalLM": {
        "head_dim": 16,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "num_shared_experts": 2,
        "moe_intermediate_size": 24,
        "attention_bias": True,
        "mlp_bias": True,
    },
    "NanoChatForCausalLM": {"attention_bias": True, "final_logit_softcapping": 5.0},
    "PhimoeForCausalLM": {
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "router_jitter_noise": 0.2,
        "attention_bias": True,
        "lm_head_bias": True,
        "sliding_window": 30,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10_000.0,
            "original_max_position_embeddings": 256,
            "short_factor": [1.0, 1.5, 2.0, 2.5],
            "long_factor": [1.5, 2.0, 2.5, 4.0],
            "short_mscale": 1.2,
            "long_mscale": 1.3,
        },
    },
    "VaultGemmaForCausalLM": {
        "head_dim": 8,
        "sliding_window": 9,
        "query_pre_attn_scalar": 24,
        "attn_logit_softcapping": 3.0,
        "final_logit_softcapping": 5.0,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "YoutuForCausalLM": {
        "num_key_value_heads": 6,
        "kv_lora_rank": 16,
        "q_lora_rank": 24,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 12,
        "initializer_range": 0.15,
        "rope_interleave": False,
    },
    "Ministral3ForCausalLM": {
        "head_dim": 8,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10_000.0,
            "factor": 4.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 16,
            "llama_4_scaling_beta": 0.3,
        },
    },
    "Gemma4ForCausalLM": {
        "head_dim": 8,
        "global_head_dim": 16,
        "num_hidden_layers": 6,
        "sliding_window": 9,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
        "num_kv_shared_layers": 2,
        "use_double_wide_mlp": True,
        "vocab_size_per_layer_input": VOCAB_SIZE,
        "hidden_size_per_layer_input": 8,
        "final_logit_softcapping": 5.0,
    },
    "MinistralForCausalLM": {
        "head_dim": 8,
        "sliding_window": 9,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "Olmo3ForCausalLM": {
        "sliding_window": 9,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "SolarOpenForCausalLM": {
        "head_dim": 8,
        "n_routed_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 24,
        "n_shared_experts": 2,
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 1.5,
        "attention_bias": True,
        "tie_word_embeddings": False,
    },
}

WRITTEN = (
    *("AquilaForCausalLM", "AquilaModel", "SkyworkForCausalLM", "XverseForCausalLM"),
    *("InternLMForCausalLM", "InternLM3ForCausalLM", "MiniMaxM1ForCausalLM"),
    *("QWenLMHeadModel", "Plamo3ForCausalLM", "BailingMoeV2ForCausalLM"),
)
"""Relatives of which `tests.oracles.checkpoints` writes the checkpoints."""
RELATIVES |= {name: {} for name in WRITTEN}

# Other spellings of architectures above, by the class of transformers that they mean.
SPELLINGS = {
    "PhiMoEForCausalLM": "PhimoeForCausalLM",
    "Ernie4_5_ForCausalLM": "Ernie4_5ForCausalLM",
    "MPTForCausalLM": "MptForCausalLM",
    "RWForCausalLM": "FalconForCausalLM",
    "StableLMEpochForCausalLM": "StableLmForCausalLM",
}

# Second forms of an architecture, where one configuration cannot show all of its traits.
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "LlamaForCausalLM": [
        {"attention_bias": False, "mlp_bias": False, "tie_word_embeddings": True},
    ],
    "FalconForCausalLM": [
        {"new_decoder_architecture": False, "multi_query": True, "bias": False},
        {"new_decoder_architecture": False, "multi_query": True, "alibi": True},
        {
            "new_decoder_architecture": False,
            "multi_query": False,
            "num_kv_heads": None,
            "parallel_attn": False,
        },
    ],
    "MistralForCausalLM": [{"sliding_window": None, "head_dim": None}],
    "Exaone4ForCausalLM": [{"sliding_window": None, "layer_types": ["full_attention"] * 4}],
    "OPTForCausalLM": [{"do_layer_norm_before": True, "word_embed_proj_dim": 48}],
    "BloomForCausalLM": [{"apply_residual_connection_post_layernorm": False}],
    "GPTNeoXForCausalLM": [{"use_parallel_residual": False, "attention_bias": False}],
    "StableLmForCausalLM": [{"use_parallel_residual": True, "qk_layernorm": False}],
    "CohereForCausalLM": [{"use_qk_norm": False}],
    "SmolLM3ForCausalLM": [
        {"use_sliding_window": True, "sliding_window": 9, "no_rope_layers": [1, 0, 0, 1]}
    ],
    "GPTBigCodeForCausalLM": [{"multi_query": False}],
    "Cohere2MoeForCausalLM": [
        {
            "prefix_dense_sliding_window_pattern": 2,
            "expert_selection_fn": "sigmoid",
            "shared_expert_combination_strategy": "sum",
            "rms_norm_eps": 1e-5,
        },
        {
            "num_shared_experts": 0,
            "expert_selection_fn": "sigmoid",
            "norm_topk_prob": False,
            "initializer_range": 0.15,
        },
    ],
    "Lfm3ForCausalLM": [
        {
            "layer_types": ["full_attention", "conv", "sliding_attention"] * 2,
            "use_sandwich_norm": False,
            "use_attention_gate": False,
            "tie_word_embeddings": False,
        }
    ],
    "HyperCLOVAXForCausalLM": [{"use_post_norm": False, "attention_multiplier": None}],
    "LagunaForCausalLM": [{"gating": "per-element", "moe_router_logit_softcapping": 0.0}],
    "FlintForCausalLM": [{"mlp_only_layers": [1], "norm_topk_prob": False}],
    "Gemma4ForCausalLM": [
        {
            "hidden_size_per_layer_input": 0,
            "num_kv_shared_layers": 0,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
        },
        {
            "hidden_size_per_layer_input": 0,
            "num_kv_shared_layers": 0,
            "attention_k_eq_v": True,
            "enable_moe_block": True,
            "num_experts": 8,
            "top_k_experts": 3,
            "moe_intermediate_size": 24,
        },
    ],
    "Phi3ForCausalLM": [{"rope_parameters": None, "sliding_window": None}],
    "MambaForCausalLM": [{"time_step_rank": "auto", "conv_kernel": 4, "use_conv_bias": False}],
}


TRAITS |= (
    moe_models.TRAITS
    | state_space_models.TRAITS
    | vision_language_models.TRAITS
    | delta_net_models.TRAITS
)
SPELLINGS |= moe_models.SPELLINGS | vision_language_models.SPELLINGS
VARIANTS |= moe_models.VARIANTS | state_space_models.VARIANTS | delta_net_models.VARIANTS


def tiny_config(architecture: str, **changes: Any) -> Any:
    """A transformers config of a three-layer model of this architecture."""
    import transformers

    name = SPELLINGS.get(architecture, architecture)
    model = getattr(transformers, name)
    fields = _COMMON | (TRAITS | UNLISTED | RELATIVES)[name] | changes
    if "vision_config" in fields:
        fields = vision_language_models.nested(fields)
    return model.config_class(**fields, architectures=[architecture])


def tiny_model(architecture: str, *, seed: int = 0, **changes: Any) -> Any:
    """A random float32 transformers model; biases and norms are random too, so none is skipped."""
    import torch
    import transformers

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = tiny_config(architecture, **changes)
        name = SPELLINGS.get(architecture, architecture)
        model = getattr(transformers, name)(config).eval()
        for name, parameter in model.named_parameters():
            if name.endswith(
                delta_net_models.FORGETS
            ):  # as its class has it, all is forgotten at once
                parameter.data.uniform_(-5.0, 0.0)
            elif name.endswith("A_log"):  # slow enough that whole pages are remembered
                parameter.data.normal_(-2.0, 0.5)
            elif parameter.ndim == 1 or "norm" in name.split(".")[-2] or "correction" in name:
                centre = 0.0 if name.endswith("bias") else 1.0
                parameter.data.normal_(centre, 0.2)
            elif not parameter.any():  # a router that its class fills with zeros
                parameter.data.normal_(0.0, 0.2)
        for name, buffer in model.named_buffers():
            if name.endswith(("correction_bias", "expert_bias")):
                buffer.normal_(0.0, 0.2)
            elif name.endswith("layer_scalar"):
                buffer.normal_(1.0, 0.2)
    return model


def save_checkpoint(folder: Path, architecture: str, *, seed: int = 0, **changes: Any) -> Any:
    """Save a tiny model as config.json and safetensors; returns the transformers model."""
    model = tiny_model(architecture, seed=seed, **changes)
    model.save_pretrained(folder)
    if architecture in SPELLINGS:
        config = folder / "config.json"
        config.write_text(config.read_text().replace(SPELLINGS[architecture], architecture))
    return model


CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL_TOKENS = ("<|bos|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")


def save_tokenizer(folder: Path, size: int = 0) -> Path:
    """Save a byte-level BPE tokenizer with a chat template: any text round-trips.

    Ids 0.. are `SPECIAL_TOKENS` (bos 0, end 1, as the tiny models have it), then the 256 bytes
    and a few merges; all ids are below `VOCAB_SIZE`. Up to a larger `size` each id has a text that
    no text is split into.
    """
    import json

    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the relay runner hands the baton to the next runner"], trainer)
    folder.mkdir(parents=True, exist_ok=True)
    saved = json.loads(tokenizer.to_str())
    known = saved["model"]["vocab"]
    known.update({f"<{number}>": number for number in range(len(known), size)})
    (folder / "tokenizer.json").write_text(json.dumps(saved))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[0],
        "eos_token": SPECIAL_TOKENS[1],
        "model_max_length": MAX_LENGTH,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
    return folder


def save_model(folder: Path, architecture: str = "LlamaForCausalLM", **changes: Any) -> Path:
    """A whole servable folder: checkpoint and tokenizer."""
    save_checkpoint(folder, architecture, **changes)
    return save_tokenizer(folder)
