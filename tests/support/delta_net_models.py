"""The odd traits of decoders with delta nets: data for `tests.support.tiny_models` and the parity
test."""

from __future__ import annotations

from typing import Any

ROWS = {"Qwen3NextForCausalLM": "S11", "KimiLinearForCausalLM": "L09"}

_LINEAR = {
    "num_hidden_layers": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
}
_QWEN = {
    **_LINEAR,
    # Norms scale by 1 + w: with wider weights the last bit of an input moves a logit by 0.001, in
    # the oracle as well.
    "initializer_range": 0.15,
    "head_dim": 16,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10_000.0,
        "partial_rotary_factor": 0.5,
    },
}
_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
_SHARED = {**_EXPERTS, "shared_expert_intermediate_size": 28}
_EYES = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_heads": 2,
    "out_hidden_size": 48,
    "num_position_embeddings": 16,
}
_SECTIONS = {**_QWEN["rope_parameters"], "mrope_section": [2, 1, 1], "mrope_interleaved": True}

TRAITS: dict[str, dict[str, Any]] = {
    "Qwen3NextForCausalLM": {
        **_QWEN,
        **_SHARED,
        "mlp_only_layers": [1],
        "attention_bias": True,
    },
    "Qwen3_5ForCausalLM": {**_QWEN, "tie_word_embeddings": True},
    "Qwen3_5MoeForCausalLM": {**_QWEN, **_SHARED, "linear_conv_kernel_dim": 2},
    "Qwen3_5ForConditionalGeneration": {
        **_QWEN,
        "rope_parameters": _SECTIONS,
        "tie_word_embeddings": True,
        "vision_config": _EYES,
    },
    "Qwen3_5MoeForConditionalGeneration": {
        **_QWEN,
        **_SHARED,
        "rope_parameters": _SECTIONS,
        "tie_word_embeddings": False,
        "vision_config": _EYES,
    },
    "KimiLinearForCausalLM": {
        **_EXPERTS,
        "num_hidden_layers": 4,
        "layer_types": [
            "linear_attention",
            "linear_attention",
            "full_attention",
            "linear_attention",
        ],
        "num_key_value_heads": 6,
        "kv_lora_rank": 14,
        "qk_nope_head_dim": 10,
        "qk_rope_head_dim": 8,
        "v_head_dim": 12,
        "linear_num_heads": 4,
        "linear_head_dim": 8,
        "n_shared_experts": 2,
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 1.7,
    },
    # transformers saves the convolution in three equal parts: so keys are as wide as values.
    "OlmoHybridForCausalLM": {
        **_LINEAR,
        "linear_key_head_dim": 24,
        "linear_value_head_dim": 8,
        "attention_bias": True,
    },
}

VARIANTS: dict[str, list[dict[str, Any]]] = {
    "Qwen3NextForCausalLM": [
        {
            "norm_topk_prob": False,
            "attention_bias": False,
            "mlp_only_layers": None,
            "decoder_sparse_step": 2,
            "linear_num_value_heads": 2,
            "linear_conv_kernel_dim": 2,
        }
    ],
    "KimiLinearForCausalLM": [
        {"q_lora_rank": 18, "attention_bias": True, "linear_conv_kernel_dim": 2}
    ],
    "OlmoHybridForCausalLM": [
        {
            "linear_allow_neg_eigval": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
            "linear_num_key_heads": None,
            "linear_num_value_heads": None,
            "linear_key_head_dim": None,
            "linear_value_head_dim": 6,
        }
    ],
}

FORGETS = ("linear_attn.A_log", "forget_gate.A_log")
"""Parameters from which what is left of a state follows."""
