"""Tiny state-space models, alone and mixed with attention; see `tests.support.tiny_models`."""

from __future__ import annotations

from typing import Any

ROWS = {
    "Mamba2ForCausalLM": "S02",
    "BambaForCausalLM": "S04",
    "FalconH1ForCausalLM": "S06",
    "NemotronHForCausalLM": "S08",
    "GraniteMoeHybridForCausalLM": "S09",
    "Zamba2ForCausalLM": "S05",
    "Plamo2ForCausalLM": "S07",
}

_MAMBA = {
    "mamba_n_heads": 6,
    "mamba_d_head": 16,
    "mamba_n_groups": 2,
    "mamba_d_state": 10,
    "mamba_d_conv": 4,
    "mamba_chunk_size": 8,
}
_KINDS = ["linear_attention", "full_attention", "linear_attention", "linear_attention"]

TRAITS: dict[str, dict[str, Any]] = {
    "Mamba2ForCausalLM": {
        "num_heads": 6,
        "head_dim": 16,
        "n_groups": 2,
        "state_size": 10,
        "chunk_size": 8,
        "use_bias": True,
        "time_step_limit": (0.05, 2.0),
    },
    "BambaForCausalLM": {
        **_MAMBA,
        "num_hidden_layers": 4,
        "attn_layer_indices": [1],
        "mamba_proj_bias": True,
        "attention_bias": True,
        "mlp_bias": True,
    },
    "FalconH1ForCausalLM": {
        **_MAMBA,
        "mamba_d_ssm": 96,
        "mamba_proj_bias": True,
        "projectors_bias": True,
        "attention_bias": True,
        "mlp_bias": True,
        "lm_head_multiplier": 0.7,
        "embedding_multiplier": 1.6,
        "mlp_multipliers": [0.8, 0.6],
        "key_multiplier": 0.5,
        "attention_in_multiplier": 1.3,
        "attention_out_multiplier": 0.7,
        "ssm_multipliers": [0.9, 1.2, 0.8, 1.1, 0.7],
        "ssm_in_multiplier": 1.4,
        "ssm_out_multiplier": 0.6,
    },
    "GraniteMoeHybridForCausalLM": {
        **_MAMBA,
        "mamba_n_groups": 1,
        "num_hidden_layers": 4,
        "layer_types": _KINDS,
        "num_local_experts": 8,
        "num_experts_per_tok": 3,
        "shared_intermediate_size": 28,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.6,
        "attention_multiplier": 0.2,
        "logits_scaling": 2.5,
        "attention_bias": True,
    },
    "Zamba2ForCausalLM": {
        "num_hidden_layers": 5,
        "layers_block_type": ["linear_attention", "hybrid", "hybrid", "linear_attention", "hybrid"],
        "num_key_value_heads": 6,
        "num_mem_blocks": 2,
        "initializer_range": 0.15,
        "use_shared_attention_adapter": True,
        "adapter_rank": 5,
        "use_mem_rope": True,
        "mamba_d_state": 10,
        "mamba_ngroups": 2,
        "n_mamba_heads": 6,
        "chunk_size": 8,
        "add_bias_linear": True,
        "time_step_min": 0.05,
    },
    "NemotronHForCausalLM": {
        "num_hidden_layers": None,
        "layers_block_type": [
            "linear_attention",
            "mlp",
            "full_attention",
            "mlp",
            "linear_attention",
            "linear_attention",
        ],
        "head_dim": 12,
        "mamba_num_heads": 6,
        "mamba_head_dim": 12,
        "n_groups": 2,
        "ssm_state_size": 10,
        "chunk_size": 8,
        "use_bias": True,
    },
}

EXPERTS = {
    "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp", "moe"],
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_group": 2,
    "topk_group": 1,
    "routed_scaling_factor": 1.7,
    "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 28,
}

VARIANTS: dict[str, list[dict[str, Any]]] = {
    "Mamba2ForCausalLM": [
        {"use_bias": False, "use_conv_bias": False, "n_groups": 6, "conv_kernel": 2}
    ],
    "BambaForCausalLM": [{"mamba_n_groups": 1, "mamba_conv_bias": False}],
    "NemotronHForCausalLM": [
        {**EXPERTS, "mlp_bias": True, "use_bias": False},
        {**EXPERTS, "moe_latent_size": 24},
    ],
    "FalconH1ForCausalLM": [
        {"mamba_rms_norm": True, "ssm_multipliers": None},
        {"mamba_rms_norm": True, "mamba_norm_before_gate": False, "mlp_multipliers": None},
    ],
    "Zamba2ForCausalLM": [
        {
            "layers_block_type": ["hybrid", "linear_attention", "linear_attention"],
            "num_hidden_layers": 3,
            "num_mem_blocks": 1,
            "num_key_value_heads": 2,
            "use_shared_attention_adapter": False,
            "use_mem_rope": False,
            "add_bias_linear": False,
            "mamba_ngroups": 1,
        }
    ],
    "GraniteMoeHybridForCausalLM": [{"num_local_experts": 0, "position_embedding_type": "rope"}],
}
