"""Every architecture as llama.cpp's converter writes it: the logits of its safetensors oracle."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from gguf import GGMLQuantizationType as Type

from baton.errors import ModelError
from baton_worker.checkpoint.load import load_model
from baton_worker.checkpoint.loaded_model import LoadedModel
from baton_worker.kernels.cpu.linear import CpuLinear
from baton_worker.layers.build_context import BuildContext
from baton_worker.layers.linear import GatedLinear, Linear
from baton_worker.models.encoder import EncoderModel
from tests.oracles import checkpoints, mixtures
from tests.support import state_space_models, tiny_encoders, tiny_models
from tests.support.gguf_conversion import (
    Step,
    convert,
    corrections,
    fused_experts,
    fused_qkv,
    gemma4,
    grouped_scans,
    permuted,
    stacked,
)

CPU = torch.device("cpu")


class Case(NamedTuple):
    arch: str
    architecture: str
    metadata: dict[str, Any]
    changes: dict[str, Any] = {}  # noqa: RUF012, never written to
    steps: tuple[Step, ...] | None = None


QUANTISED = dict.fromkeys(
    [
        f"{part}.weight"
        for part in ("_q", "_k", "_v", "_qkv", "_output", "_gate", "_up", "_down", "_shexp")
    ],
    Type.Q8_0,
)
"""Matrices of attention and of feed-forwards."""
EPS, WIDE = {"attention.layer_norm_epsilon": 1e-5}, {"feed_forward_length": 192}
MOE = {"expert_count": 8, "expert_feed_forward_length": 24}
NO_BIAS = {"attention_bias": False}
ROUTED = MOE | {
    "expert_shared_count": 2,
    "expert_weights_scale": 1.7,
    "expert_weights_norm": True,
    "expert_gating_func": 2,
    "expert_group_count": 4,
    "expert_group_used_count": 2,
    "leading_dense_block_count": 1,
}
PLAIN_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}}
LATENT = {
    "attention.q_lora_rank": 18,
    "attention.kv_lora_rank": 14,
    "attention.head_count_kv": 1,
    "attention.key_length": 22,
    "attention.value_length": 14,
    "attention.key_length_mla": 18,
    "attention.value_length_mla": 12,
    "rope.dimension_count": 8,
}
YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 64,
}
WARM = YARN | {"rope.scaling.yarn_log_multiplier": 0.07}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
WARM_ROPE = YARN_ROPE | {"mscale": 0.7, "mscale_all_dim": 0.7}

SCANS = {
    "ssm.conv_kernel": 3,
    "ssm.inner_size": 96,
    "ssm.state_size": 6,
    "ssm.time_step_rank": 5,
    "attention.layer_norm_rms_epsilon": 1e-5,
}
NO_HEADS = {
    "attention.head_count": 0,
    "attention.head_count_kv": None,
    "feed_forward_length": 0,
    "context_length": 1 << 20,
}

CASES = [
    Case("gpt2", "GPT2LMHeadModel", EPS),
    Case("starcoder", "GPTBigCodeForCausalLM", EPS | {"attention.head_count_kv": 1}),
    Case("gptneox", "GPTNeoXForCausalLM", EPS | {"rope.dimension_count": 4}),
    Case(
        "gptneox",
        "GPTNeoXForCausalLM",
        EPS | {"rope.dimension_count": 4, "use_parallel_residual": False},
        {"use_parallel_residual": False, "attention_bias": False},
    ),
    Case(
        "bloom",
        "BloomForCausalLM",
        EPS | WIDE,
        {"apply_residual_connection_post_layernorm": False},
    ),
    Case(
        "mpt",
        "MptForCausalLM",
        EPS | WIDE | {"attention.clamp_kqv": 1.5, "attention.max_alibi_bias": 8.0},
    ),
    Case("falcon", "FalconForCausalLM", EPS | WIDE, {"num_ln_in_parallel_attn": 2}),
    Case("falcon", "FalconForCausalLM", EPS | WIDE, {"num_ln_in_parallel_attn": 1, "bias": False}),
    Case("phi2", "PhiForCausalLM", EPS | {"rope.dimension_count": 4}, {"qk_layernorm": False}),
    Case("olmo", "OlmoForCausalLM", {"attention.clamp_kqv": 1.5}, NO_BIAS),
    Case("internlm2", "InternLM2ForCausalLM", {}),
    Case(
        "minicpm",
        "MiniCPMForCausalLM",
        {"embedding_scale": 3.0, "residual_scale": 1.4 / 3**0.5, "logit_scale": 3.0},
    ),
    Case("orion", "OrionForCausalLM", {"attention.layer_norm_epsilon": 1e-6}),
    Case("exaone", "ExaoneForCausalLM", {"attention.layer_norm_rms_epsilon": 1e-6}),
    Case(
        "exaone4",
        "Exaone4ForCausalLM",
        {
            "attention.sliding_window": 9,
            "attention.sliding_window_pattern": [True, True, True, False],
        },
    ),
    Case(
        "cohere2",
        "Cohere2ForCausalLM",
        EPS | {"attention.sliding_window": 9, "logit_scale": 0.25},
        NO_BIAS,
    ),
    Case(
        "cohere2",
        "Cohere2ForCausalLM",
        EPS
        | {
            "attention.sliding_window": 9,
            "attention.sliding_window_pattern": 2,
            "logit_scale": 0.25,
        },
        NO_BIAS | {"sliding_window_pattern": 2},
    ),
    Case("smollm3", "SmolLM3ForCausalLM", {"attention.layer_norm_rms_epsilon": 1e-6}),
    Case("jais2", "Jais2ForCausalLM", EPS),
    Case("chatglm", "GlmForCausalLM", {"rope.dimension_count": 8}),
    Case(
        "chatglm",
        "ChatGLMModel",
        {
            "attention.head_count_kv": 2,
            "attention.key_length": 16,
            "attention.layer_norm_rms_epsilon": 1.5625e-07,
            "rope.dimension_count": 8,
            "rope.freq_base": 50_000.0,
        },
    ),
    Case("pangu-embedded", "PanguEmbeddedForCausalLM", {}),
    Case(
        "deci",
        "DeciLMForCausalLM",
        {
            "attention.head_count": [6, 6, 0, 6],
            "attention.head_count_kv": [6, 2, 0, 1],
            "feed_forward_length": [256, 0, 256, 512],
        },
    ),
    Case(
        "minicpm3",
        "MiniCPM3ForCausalLM",
        {
            "attention.q_lora_rank": 18,
            "attention.kv_lora_rank": 14,
            "attention.key_length": 18,
            "rope.dimension_count": 8,
        },
        {
            **{"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256, "mlp_bias": False},
            **NO_BIAS,
            "original_max_position_embeddings": 256,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10_000.0,
                "short_factor": [1.0, 1.5, 2.0, 2.5],
                "long_factor": [1.5, 2.0, 2.5, 4.0],
                "original_max_position_embeddings": 256,
            },
        },
    ),
    Case("baichuan", "BaichuanForCausalLM", {}, {"layers": 40}),
    Case(
        "deepseek",
        "DeepseekForCausalLM",
        MOE
        | {
            "expert_shared_count": 2,
            "expert_feed_forward_length": 20,
            "leading_dense_block_count": 2,
        },
        {"layers": 3},
    ),
    Case(
        "deepseek2",
        "DeepseekV2ForCausalLM",
        ROUTED | LATENT | WARM | {"expert_gating_func": 1, "expert_weights_norm": False},
        {"attention_bias": False, "rope_parameters": WARM_ROPE},
    ),
    Case(
        "deepseek2",
        "DeepseekV3ForCausalLM",
        ROUTED | LATENT | WARM,
        {"attention_bias": False, "rope_parameters": WARM_ROPE},
    ),
    Case(
        "deepseek2",
        "Glm4MoeLiteForCausalLM",
        ROUTED | LATENT,
        {"attention_bias": False, "first_k_dense_replace": 1},
    ),
    Case("glm4moe", "Glm4MoeForCausalLM", ROUTED | {"rope.dimension_count": 4}),
    Case("dots1", "Dots1ForCausalLM", ROUTED, {"sliding_window": None, "attention_bias": False}),
    Case(
        "ernie4_5-moe",
        "Ernie4_5_MoeForCausalLM",
        MOE | {"leading_dense_block_count": 1, "interleave_moe_layer_step": 2},
        {"moe_layer_end_index": -1, "use_bias": False},
    ),
    Case(
        "hunyuan-moe",
        "HunYuanMoEV1ForCausalLM",
        MOE | {"expert_used_count": 2, "expert_feed_forward_length": 80},
        {"moe_topk": [2, 2, 2], **NO_BIAS, **PLAIN_ROPE},
    ),
    Case(
        "granitemoe",
        "GraniteMoeSharedForCausalLM",
        {
            "expert_count": 8,
            "embedding_scale": 3.0,
            "residual_scale": 0.4,
            "attention.scale": 0.2,
            "logit_scale": 1.6,
        },
        NO_BIAS,
    ),
    Case(
        "dbrx",
        "DbrxForCausalLM",
        {
            "expert_count": 16,
            "expert_used_count": 4,
            "feed_forward_length": 24,
            "attention.head_count_kv": 2,
            "attention.clamp_kqv": 2.0,
        },
        {
            "ffn_config": {
                "ffn_hidden_size": 24,
                "hidden_size": 48,
                "moe_num_experts": 16,
                "moe_top_k": 4,
                "moe_normalize_expert_weights": 1.0,
            }
        },
    ),
    Case(
        "gpt-oss",
        "GptOssForCausalLM",
        YARN
        | {"expert_count": 8, "expert_feed_forward_length": 80, "attention.sliding_window": 10},
        {"swiglu_limit": 7.0},
    ),
    Case(
        "minimax-m2",
        "MiniMaxM2ForCausalLM",
        MOE | {"expert_feed_forward_length": 80, "rope.dimension_count": 8},
    ),
    Case(
        "exaone-moe",
        "ExaoneMoeForCausalLM",
        ROUTED
        | {
            "attention.sliding_window": 9,
            "attention.sliding_window_pattern": [True, True, False, True],
        },
    ),
    Case(
        "afmoe",
        "AfmoeForCausalLM",
        ROUTED | {"expert_group_count": 1, "attention.sliding_window": 9},
    ),
    Case(
        "llama4",
        "Llama4ForCausalLM",
        {
            "expert_count": 8,
            "expert_feed_forward_length": 80,
            "feed_forward_length": 96,
            "interleave_moe_layer_step": 2,
        },
        {
            **NO_BIAS,
            "attention_chunk_size": 8192,
            "floor_scale": 8192,
            "attn_scale": 0.1,
            "no_rope_layer_interval": 4,
        },
    ),
    Case(
        "step35",
        "Step3p5ForCausalLM",
        {
            "attention.head_count": [4, 6, 4, 6],
            "attention.head_count_kv": [2, 2, 2, 2],
            "attention.sliding_window": 9,
            "attention.sliding_window_pattern": [False, True, False, True],
            "rope.freq_base": 50_000.0,
            "rope.freq_base_swa": 10_000.0,
            "expert_count": 8,
            "expert_used_count": 3,
            "expert_feed_forward_length": 20,
            "expert_shared_feed_forward_length": 28,
            "expert_weights_scale": 1.7,
            "expert_weights_norm": True,
            "leading_dense_block_count": 1,
            "swiglu_clamp_exp": [0.0, 0.0, 0.4, 0.3],
            "swiglu_clamp_shexp": [0.0, 0.0, 0.5, 0.0],
        },
    ),
    Case("mamba", "MambaForCausalLM", SCANS | NO_HEADS | {"ssm.dt_b_c_rms": False}),
    Case(
        "mamba",
        "FalconMambaForCausalLM",
        SCANS
        | NO_HEADS
        | {
            "ssm.conv_kernel": 4,
            "ssm.state_size": 16,
            "ssm.time_step_rank": 3,
            "ssm.dt_b_c_rms": True,
        },
        {"mixer_rms_eps": 1e-6},
    ),
    Case(
        "jamba",
        "JambaForCausalLM",
        SCANS
        | {
            "attention.head_count_kv": [0, 2, 0, 0, 2],
            "attention.layer_norm_rms_epsilon": 1e-6,
            "expert_count": 8,
        },
    ),
]

DELTA = {
    "ssm.conv_kernel": 4,
    "ssm.state_size": 8,
    "ssm.group_count": 2,
    "ssm.time_step_rank": 6,
    "ssm.inner_size": 72,
    "rope.dimension_count": 8,
}
GROUPED = {
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 96,
    "ssm.state_size": 10,
    "ssm.time_step_rank": 6,
    "ssm.group_count": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
}
INDEX = {
    "attention.indexer.head_count": 16,
    "attention.indexer.key_length": 12,
    "attention.indexer.top_k": 8,
}
GEMMA4 = {
    "attention.key_length": 16,
    "attention.key_length_swa": 8,
    "attention.sliding_window": 9,
    "attention.sliding_window_pattern": [True, False] * 3,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "final_logit_softcapping": 5.0,
    "rope.freq_base": 1_000_000.0,
    "rope.freq_base_swa": 10_000.0,
}
SHARED = MOE | {"expert_shared_feed_forward_length": 28}
CONV = {"shortconv.l_cache": 4, "attention.layer_norm_rms_epsilon": 1e-5}
SPARSE = {"mlp_only_layers": [], "attention_bias": False, "use_sliding_window": False}
LAGUNA = {
    **MOE,
    "expert_weights_scale": 1.5,
    "expert_gating_func": 2,
    "expert_shared_feed_forward_length": 40,
    "leading_dense_block_count": 1,
    "attention.head_count": [4, 6, 8],
    "attention.sliding_window": 9,
    "rope.freq_base": 500_000.0,
    "rope.freq_base_swa": 10_000.0,
    "rope.dimension_count": 8,
    "rope.dimension_count_swa": 16,
}
COMMAND = {
    **MOE,
    "expert_feed_forward_length": 80,
    "feed_forward_length": 56,
    "expert_shared_count": 2,
    "leading_dense_block_count": 2,
    "logit_scale": 0.0625,
    "attention.sliding_window": 9,
    "attention.sliding_window_pattern": [False, False, True, True, True, False],
}
GRANITE_SWA = {
    "attention.scale": 0.2,
    "attention.sliding_window": 9,
    "attention.layer_norm_rms_epsilon": 1e-5,
}
MORE = [
    Case(
        "granite_swa",
        "GraniteSWAForCausalLM",
        GRANITE_SWA
        | {
            "attention.sliding_window_pattern": [True, False, True],
            "attention.rope_pattern": [True, False, True],
        },
        {"layer_rope_theta": [10_000.0, 0, 10_000.0], "mlp_bias": False},
    ),
    Case(
        "granite_swa",
        "GraniteMoeSWAForCausalLM",
        GRANITE_SWA
        | {
            "attention.layer_norm_rms_epsilon": 1e-6,
            "attention.sliding_window_pattern": [False, True, True, True, False],
            "expert_count": 8,
            "expert_shared_feed_forward_length": 28,
            "embedding_scale": 3.0,
            "residual_scale": 0.4,
            "logit_scale": 1.6,
        },
        {"layer_rope_theta": None},
    ),
    Case(
        "mimo2",
        "MiMoV2FlashForCausalLM",
        MOE
        | {
            "block_count": 4,
            "nextn_predict_layers": 1,
            "leading_dense_block_count": 1,
            "expert_gating_func": 2,
            "expert_group_count": 4,
            "expert_group_used_count": 2,
            "expert_weights_scale": 1.7,
            "attention.head_count_kv": [2, 4, 2, 4],
            "attention.value_length": 16,
            "attention.value_scale": 0.7,
            "attention.sliding_window": 9,
            "attention.sliding_window_pattern": [0, 1, 0, 1],
            "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.dimension_count": 8,
            "rope.freq_base": 50_000.0,
            "rope.freq_base_swa": 10_000.0,
        },
        {"attention_value_scale": 0.7},
    ),
    Case(
        "plamo2",
        "Plamo2ForCausalLM",
        {
            "attention.head_count": [0, 4, 0, 4],
            "attention.head_count_kv": [0, 2, 0, 2],
            "attention.key_length": 12,
            "ssm.conv_kernel": 4,
            "ssm.inner_size": 72,
            "ssm.state_size": 10,
            "ssm.time_step_rank": 6,
            "ssm.group_count": 0,
        },
        {"attention_window_size": 256},
    ),
    Case("qwen2vl", "Qwen2ForCausalLM", {}, {"use_sliding_window": False}),
    Case("qwen3vl", "Qwen3ForCausalLM", {"attention.layer_norm_rms_epsilon": 1e-6}),
    Case("qwen3vlmoe", "Qwen3MoeForCausalLM", MOE, SPARSE),
    Case("mistral3", "MistralForCausalLM", {}, {"sliding_window": None}),
    Case(
        "mistral3",
        "Ministral3ForCausalLM",
        YARN
        | {
            "attention.temperature_scale": 0.3,
            "rope.scaling.original_context_length": 16,
            "rope.scaling.yarn_log_multiplier": 1.0,
        },
    ),
    Case(
        "olmo2",
        "Olmo3ForCausalLM",
        YARN
        | {
            "attention.sliding_window": 9,
            "attention.sliding_window_pattern": [True, False, True],
        },
        {
            "rope_parameters": {
                "full_attention": YARN_ROPE,
                "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            }
        },
    ),
    Case("apertus", "ApertusForCausalLM", {}, NO_BIAS),
    Case(
        "phimoe",
        "PhimoeForCausalLM",
        MOE | {"expert_feed_forward_length": 80, "attention.sliding_window": 30},
        {"router_jitter_noise": 0.01, **PLAIN_ROPE},
    ),
    Case(
        "laguna",
        "LagunaForCausalLM",
        LAGUNA | {"attention.sliding_window_pattern": [False, True, False]},
        NO_BIAS | {"moe_router_logit_softcapping": 0.0},
    ),
    Case(
        "laguna",
        "LagunaForCausalLM",
        LAGUNA,
        NO_BIAS
        | {
            "moe_router_logit_softcapping": 0.0,
            "gating": "per-element",
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        },
    ),
    Case(
        "mellum",
        "MellumForCausalLM",
        MOE
        | YARN
        | {
            "rope.freq_base": 10_000.0,
            "rope.freq_base_swa": 500.0,
            "attention.sliding_window": 9,
            "attention.sliding_window_pattern": [True, False, True],
        },
        {"mlp_layer_types": None},
    ),
    Case(
        "hy_v3",
        "HYV3ForCausalLM",
        MOE | {"expert_weights_scale": 2.826, "expert_gating_func": 2},
        NO_BIAS | {"mlp_bias": False},
    ),
    Case(
        "cohere2moe",
        "Cohere2MoeForCausalLM",
        COMMAND | EPS | {"expert_gating_func": 1},
        NO_BIAS,
    ),
    Case(
        "cohere2moe",
        "Cohere2MoeForCausalLM",
        COMMAND | {"expert_weights_norm": True},
        NO_BIAS | {"rms_norm_eps": 1e-5, "expert_selection_fn": "sigmoid"},
    ),
    Case("llama", "InternLM3ForCausalLM", {"attention.head_count_kv": 2}, steps=(permuted,)),
    Case("qwen", "QWenLMHeadModel", {"attention.layer_norm_epsilon": 1e-6}),
    Case(
        "plamo3",
        "Plamo3ForCausalLM",
        {
            "attention.sliding_window": 9,
            "attention.sliding_window_pattern": 6,
            "rope.freq_base": 1e6,
            "rope.freq_base_swa": 1e3,
        },
    ),
    Case(
        "bailingmoe2",
        "BailingMoeV2ForCausalLM",
        ROUTED | {"rope.dimension_count": 4, "rope.freq_base": 10_000.0},
    ),
    Case("xverse", "LlamaForCausalLM", {}, steps=(permuted,)),
    Case("qwen3moe", "Qwen3MoeForCausalLM", MOE, SPARSE, (stacked, fused_experts)),
    Case("llama", "LlamaForCausalLM", {}, steps=(permuted, fused_qkv)),
    Case("hunyuan_vl", "HunYuanDenseV1ForCausalLM", {"rope.scaling.alpha": 1000.0}),
    Case(
        "deepseek2",
        "YoutuForCausalLM",
        LATENT
        | {
            "attention.q_lora_rank": 24,
            "attention.kv_lora_rank": 16,
            "attention.key_length": 24,
            "attention.value_length": 16,
            "attention.key_length_mla": 16,
        },
        {"rope_interleave": True},
    ),
    Case(
        "lfm2",
        "Lfm2ForCausalLM",
        CONV | {"attention.head_count_kv": [0, 2, 0, 0, 2]},
        {"conv_bias": False, "block_auto_adjust_ff_dim": False},
    ),
    Case(
        "lfm2moe",
        "Lfm2MoeForCausalLM",
        CONV
        | MOE
        | {
            "shortconv.l_cache": 3,
            "attention.head_count_kv": [0, 2, 0, 2, 0],
            "leading_dense_block_count": 1,
            "expert_gating_func": 2,
        },
        {"routed_scaling_factor": 1.0},
    ),
    Case("qwen3next", "Qwen3NextForCausalLM", DELTA | SHARED, SPARSE),
    Case("qwen35", "Qwen3_5ForCausalLM", DELTA),
    Case("qwen35moe", "Qwen3_5MoeForCausalLM", DELTA | SHARED | {"ssm.conv_kernel": 2}),
    Case(
        "granitehybrid",
        "GraniteMoeHybridForCausalLM",
        GROUPED
        | {
            "ssm.group_count": 1,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "attention.head_count_kv": [0, 2, 0, 0],
            "expert_count": 8,
            "embedding_scale": 3.0,
            "residual_scale": 0.6,
            "attention.scale": 0.2,
            "logit_scale": 2.5,
        },
        NO_BIAS,
    ),
    Case(
        "granitehybrid",
        "BambaForCausalLM",
        GROUPED
        | {
            "attention.head_count_kv": [0, 2, 0, 0],
            "attention.layer_norm_rms_epsilon": None,
            "rope.dimension_count": 4,
            "rope.scaling.finetuned": True,
        },
        steps=(grouped_scans, permuted),
    ),
    Case(
        "falcon-h1",
        "FalconH1ForCausalLM",
        GROUPED,
        NO_BIAS | {"mamba_proj_bias": False, "projectors_bias": False},
    ),
    Case(
        "kimi-linear",
        "KimiLinearForCausalLM",
        ROUTED
        | LATENT
        | {
            "attention.q_lora_rank": None,
            "attention.head_count_kv": [0, 0, 1, 0],
            "expert_used_count": 3,
            "kda.head_dim": 8,
            "ssm.conv_kernel": 4,
        },
        {"linear_num_heads": 6},
    ),
    Case(
        "mistral4",
        "Mistral4ForCausalLM",
        ROUTED
        | LATENT
        | WARM
        | {
            "expert_gating_func": 1,
            "rope.scaling.original_context_length": 16,
            "attention.temperature_scale": 0.3,
        },
        NO_BIAS
        | {
            "rope_parameters": WARM_ROPE
            | {"original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.3}
        },
    ),
    Case(
        "glm-dsa",
        "GlmMoeDsaForCausalLM",
        ROUTED | LATENT | INDEX | {"attention.indexer.types": [True, False, True, False]},
        NO_BIAS | {"mlp_layer_types": None, "first_k_dense_replace": 1},
    ),
    Case(
        "deepseek32",
        "DeepseekV32ForCausalLM",
        ROUTED | LATENT | WARM | INDEX,
        NO_BIAS | {"rope_parameters": WARM_ROPE},
    ),
    Case(
        "gemma3n",
        "Gemma3nForCausalLM",
        {
            "attention.sliding_window": 9,
            "attention.sliding_window_pattern": [True, True, False] * 2,
            "attention.shared_kv_layers": 2,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "activation_sparsity_scale": [0.84162123, 0.0, *[-math.inf] * 4],
            "altup.num_inputs": 3,
            "altup.active_idx": 0,
            "embedding_length_per_layer_input": 8,
            "rope.freq_base": 100_000.0,
            "rope.freq_base_swa": 1_000.0,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
        },
    ),
    Case(
        "gemma4",
        "Gemma4ForCausalLM",
        GEMMA4
        | {
            "attention.shared_kv_layers": 2,
            "embedding_length_per_layer_input": 8,
            "feed_forward_length": [80] * 4 + [160] * 2,
        },
    ),
    *(
        Case("gemma4", "Gemma4ForCausalLM", GEMMA4 | metadata, changes)
        for metadata, changes in zip(
            ({"attention.head_count_kv": [2, 1] * 3}, MOE | {"expert_used_count": 3}),
            tiny_models.VARIANTS["Gemma4ForCausalLM"],
            strict=True,
        )
    ),
    Case("mamba2", "Mamba2ForCausalLM", GROUPED | NO_HEADS, {"time_step_limit": (0.0, 1e30)}),
    Case(
        "nemotron_h",
        "NemotronHForCausalLM",
        GROUPED
        | {
            "block_count": 6,
            "ssm.inner_size": 72,
            "attention.key_length": 12,
            "attention.head_count_kv": [0, 0, 2, 0, 0, 0],
            "feed_forward_length": [0, 80, 0, 80, 0, 0],
            "attention.layer_norm_epsilon": 1e-5,
            "attention.layer_norm_rms_epsilon": None,
        },
    ),
    Case(
        "nemotron_h_moe",
        "NemotronHForCausalLM",
        GROUPED
        | MOE
        | {
            "block_count": 5,
            "ssm.inner_size": 72,
            "attention.key_length": 12,
            "attention.head_count_kv": [0, 0, 2, 0, 0],
            "expert_shared_feed_forward_length": 28,
            "expert_weights_scale": 1.7,
            "expert_weights_norm": True,
            "expert_group_count": 2,
            "expert_group_used_count": 1,
        },
        state_space_models.EXPERTS,
    ),
]


def checkpoint(folder: Path, case: Case) -> Any:
    """Write the safetensors checkpoint; returns its oracle."""
    if "layers" in case.changes:
        make = {"baichuan": checkpoints.baichuan_13b, "deepseek": mixtures.deepseek}[case.arch]
        return make(folder, case.architecture, **case.changes)
    if case.architecture in checkpoints.MAKERS:
        oracle = checkpoints.MAKERS[case.architecture](folder)
        if case.changes:  # of fields that files do not have
            vars(oracle.config).update(case.changes)
        return oracle
    return checkpoints.asked(tiny_models.save_checkpoint(folder, case.architecture, **case.changes))


def load(path: Path) -> LoadedModel:
    return load_model(path, BuildContext(CPU, torch.float32))


def assert_same(path: Path, oracle: Any, driver: Any) -> None:
    tokens = list(range(2, 40))
    ours = driver(load(path), 1).step({0: tokens})[0]
    assert (ours - oracle(tokens)).abs().max() < 1e-3, path.parent.name


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.arch}-{case.architecture}")
def test_a_converted_checkpoint_has_the_same_logits(
    tmp_path: Path, driver: Any, case: Case
) -> None:
    oracle = checkpoint(tmp_path, case)
    assert_same(convert(tmp_path, case.arch, case.metadata), oracle, driver)


def test_more_converted_checkpoints(tmp_path: Path, driver: Any) -> None:
    """Language models of multimodal ones, and decoders with recurrent layers."""
    for case in MORE:
        folder = tmp_path / f"{case.arch}-{MORE.index(case)}"
        folder.mkdir()
        oracle = checkpoint(folder, case)
        path = convert(folder, case.arch, case.metadata, steps=case.steps)
        assert_same(path, oracle, driver)


def find(architecture: str) -> Case:
    return next(case for case in CASES if case.architecture == architecture)


@pytest.mark.parametrize("arch", ["deepseek2", "falcon", "gpt-oss"])
def test_blocks_of_four_and_eight_bits(tmp_path: Path, driver: Any, arch: str) -> None:
    """What is rounded is dequantised here before it is given to the oracle: MXFP4 experts, NVFP4
    weights with factors, and tensors that are split or joined as blocks."""
    sizes = {"hidden_size": 64, "intermediate_size": 64, "head_dim": 16}
    case, changes, metadata, kinds = {
        "gpt-oss": (
            find("GptOssForCausalLM"),
            sizes,
            {"expert_feed_forward_length": 64},
            dict.fromkeys(("gate_exps.weight", "up_exps.weight"), Type.MXFP4)
            | dict.fromkeys(("down_exps.weight", "attn_q.weight"), Type.NVFP4),
        ),
        "falcon": (
            find("FalconForCausalLM"),
            {"hidden_size": 96},
            {"feed_forward_length": 384},
            {"attn_qkv.weight": Type.Q8_0},
        ),
        "deepseek2": (
            find("DeepseekV3ForCausalLM"),
            {"kv_lora_rank": 32, "qk_nope_head_dim": 32},
            {
                "attention.kv_lora_rank": 32,
                "attention.key_length": 40,
                "attention.key_length_mla": 40,
            },
            {"attn_k_b.weight": Type.Q8_0, "attn_v_b.weight": Type.Q8_0},
        ),
    }[arch]
    tiny_models.save_checkpoint(tmp_path, case.architecture, **case.changes | changes)
    rounded = convert(tmp_path, arch, case.metadata | metadata, kinds)
    (tmp_path / "floats").mkdir()
    tiny_models.save_checkpoint(tmp_path / "floats", case.architecture, **case.changes | changes)
    floats = convert(tmp_path / "floats", arch, case.metadata | metadata, kinds, floats=True)
    tokens = list(range(2, 40))
    one, other = (driver(load(path), 1).step({0: tokens})[0] for path in (rounded, floats))
    assert (one - other).abs().max() < 1e-2


@pytest.mark.parametrize("arch", ["cohere2", "smollm3", "jais2", "chatglm", "afmoe"])
def test_blocks_run_packed(tmp_path: Path, driver: Any, arch: str) -> None:
    """Linear layers keep the file's blocks, and answer like the floats that these stand for."""
    if CpuLinear.refuses(torch.zeros(1, 1)) is not None:
        pytest.skip("the CPU kernels cannot be built here")
    case = next(case for case in CASES if case.arch == arch)
    sizes = {"hidden_size": 96, "intermediate_size": 96, "moe_intermediate_size": 32}
    changes = case.changes | sizes | {"head_dim": 16}
    metadata = case.metadata | {"attention.key_length": 16, "expert_feed_forward_length": 32}
    answers, held = [], []
    for kind, floats in (("blocks", False), ("floats", True)):
        (tmp_path / kind).mkdir()
        tiny_models.save_checkpoint(tmp_path / kind, case.architecture, **changes)
        path = convert(tmp_path / kind, arch, metadata, QUANTISED, floats=floats)
        loaded = load(path)
        answers.append(driver(loaded, 1).step({0: list(range(2, 40))})[0])
        linear = [one for one in loaded.model.layers() if type(one) in (Linear, GatedLinear)]
        held.append([one.weight_bytes for one in linear])
    assert all(few * 3 < many for few, many in zip(*held, strict=True))
    assert (answers[0] - answers[1]).abs().max() < 1e-2


def test_factors_of_gemma_4_experts_are_in_nvfp4_weights(tmp_path: Path, driver: Any) -> None:
    """A file that lists no windowed layers is refused."""
    case, answers = [case for case in MORE if case.arch == "gemma4"][-1], []
    kinds = {"down_exps.weight": Type.NVFP4}
    metadata = case.metadata | {"expert_feed_forward_length": 64}

    def folded(tensors: dict[str, Any], c: Any) -> dict[str, Any]:
        return {n: t for n, t in gemma4(tensors, c).items() if "per_expert_scale" not in n}

    for floats in (False, True):
        folder = tmp_path / str(floats)
        folder.mkdir()
        changes = case.changes | {"moe_intermediate_size": 64}
        tiny_models.save_checkpoint(folder, case.architecture, **changes)
        ones = {f"blk.{layer}.ffn_down_exps.scale": torch.ones(8) for layer in range(6)}
        extra = ones if floats else {}
        some: dict[str, Any] = {"steps": (folded,), "extra": extra, "floats": floats}
        path = convert(folder, "gemma4", metadata, kinds, **some)
        answers.append(driver(load(path), 1).step({0: list(range(2, 40))})[0])
    assert (answers[0] - answers[1]).abs().max() < 1e-2
    metadata |= {"attention.sliding_window_pattern": None}
    with pytest.raises(ModelError, match="windowed layers"):
        load(convert(folder, "gemma4", metadata, **some))


def test_older_files_of_deepseek_have_one_tensor_for_keys_and_values(
    tmp_path: Path, driver: Any
) -> None:
    case = find("DeepseekV3ForCausalLM")
    oracle = checkpoint(tmp_path, case)
    metadata = {k: v for k, v in case.metadata.items() if not k.endswith("_mla")}
    metadata |= {"attention.key_length": 18, "attention.value_length": 12}
    metadata["attention.head_count_kv"] = 6
    steps = (stacked, corrections)
    assert_same(convert(tmp_path, "deepseek2", metadata, steps=steps), oracle, driver)


def test_layers_that_draft_stay_unread(tmp_path: Path, driver: Any) -> None:
    case = find("Glm4MoeForCausalLM")
    oracle = checkpoint(tmp_path, case)
    extra = {"blk.3.attn_norm.weight": torch.ones(48), "blk.3.nextn.enorm.weight": torch.ones(48)}
    metadata = case.metadata | {"block_count": 4, "nextn_predict_layers": 1}
    assert_same(convert(tmp_path, "glm4moe", metadata, extra=extra), oracle, driver)


ENCODERS = [
    Case("bert", "BertModel", {}),
    Case("nomic-bert", "NomicBertModel", {"rope.freq_base": 1_000.0}),
    Case(
        "gemma-embedding",
        "Gemma3TextModel",
        {
            "attention.sliding_window": 8,
            "attention.sliding_window_pattern": [False, True, True],
            "rope.freq_base": 1_000_000.0,
            "dense_2_feat_in": 48,
            "dense_2_feat_out": 96,
        },
        {"query_pre_attn_scalar": 16},
    ),
    Case(
        "modern-bert",
        "ModernBertModel",
        {
            "attention.sliding_window": 8,
            "attention.sliding_window_pattern": 3,
            "rope.freq_base": 160_000.0,
            "rope.freq_base_swa": 10_000.0,
        },
    ),
]


@pytest.mark.parametrize("case", ENCODERS, ids=lambda case: case.arch)
@torch.inference_mode()
def test_encoders(tmp_path: Path, case: Case) -> None:
    oracle = tiny_encoders.save(tmp_path, case.architecture, **case.changes)
    names = ("layer_norm_eps", "norm_eps", "rms_norm_eps")
    eps = next(getattr(oracle.config, name) for name in names if hasattr(oracle.config, name))
    metadata = case.metadata | {"attention.layer_norm_epsilon": eps, "pooling_type": 1}
    dense = {"dense_2.weight": torch.randn(96, 48)} if "dense_2_feat_in" in metadata else {}
    loaded = load(convert(tmp_path, case.arch, metadata, extra=dense))
    assert loaded.recipe is not None and loaded.recipe.take == "mean"
    assert loaded.recipe.width == (96 if dense else 48)
    assert isinstance(loaded.model, EncoderModel)
    text = list(range(5, 40))
    tokens, positions = torch.tensor(text), torch.arange(len(text))
    ours = loaded.model.encode(tokens, positions, [len(text)], torch.zeros_like(positions))
    expected = oracle(torch.tensor([text])).last_hidden_state[0]
    assert (ours - expected).abs().max() < 1e-3


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as error:
        load(path)
    return error.value.message


@pytest.mark.parametrize(
    ("arch", "architecture", "metadata", "words"),
    [
        (
            "qwen3",
            "Qwen3ForCausalLM",
            {"attention.head_count_kv": [2, 1, 2]},
            "GGUF files of qwen3",
        ),
        ("mimo2", "Qwen2ForCausalLM", {}, "of mimo2 leaves out"),
        ("dots1", "Dots1ForCausalLM", ROUTED | {"expert_gating_func": 1}, "gating function 1"),
        (
            "deci",
            "DeciLMForCausalLM",
            {"attention.head_count": [6] * 4, "attention.head_count_kv": [2, 0, 2, 2]},
            "linear layers for attention",
        ),
        ("qwen2", "Qwen2ForCausalLM", {"attention.head_count_kv": 1}, "its metadata asks for 8"),
    ],
)
def test_what_is_refused_says_why(
    tmp_path: Path, arch: str, architecture: str, metadata: dict[str, Any], words: str
) -> None:
    checkpoint(tmp_path, Case(arch, architecture, metadata))
    assert words in refusal(convert(tmp_path, arch, metadata))
