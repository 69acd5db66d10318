"""Tiny random vision-language models: built, never downloaded.

transformers and torch are imported inside the functions, so that importing this file costs nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

_SIZES: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
_TEXT = _SIZES | {"vocab_size": 320, "max_position_embeddings": 256, "head_dim": 12}
_CLIP = {
    "model_type": "clip_vision_model",
    **_SIZES,
    "num_hidden_layers": 4,
    "hidden_size": 32,
    "image_size": 30,
    "patch_size": 6,
}
_SIGLIP = _CLIP | {"model_type": "siglip_vision_model", "patch_size": 5, "vision_use_head": False}
_INTERN = _CLIP | {
    "model_type": "internvl_vision",
    "image_size": [24, 24],
    "patch_size": [6, 6],
    "attention_bias": True,
}
_PIXTRAL = _CLIP | {"model_type": "pixtral", "image_size": 64, "patch_size": 4, "head_dim": 8}
_LLAMA = {"text_config": {"model_type": "llama", **_TEXT}, "image_token_index": 319}
_MISTRAL = {"text_config": {"model_type": "mistral", **_TEXT}, "image_token_index": 319}
_QWEN2 = {"text_config": {"model_type": "qwen2", **_TEXT}, "image_token_index": 319}
_MLA = _SIZES | {
    "vocab_size": 320,
    "max_position_embeddings": 256,
    "num_key_value_heads": 4,
    "q_lora_rank": None,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "first_k_dense_replace": 2,
}
_MROPE: dict[str, Any] = {
    "rope_type": "default",
    "rope_theta": 10_000.0,
    "mrope_section": [2, 2, 2],
}
_QWEN = {"text_config": {**_TEXT, "rope_parameters": _MROPE}, "image_token_id": 319}
_GLM = {"depth": 2, "hidden_size": 32, "out_hidden_size": 48, "num_heads": 4, "patch_size": 4}
_QWEN3_VISION = _GLM | {"intermediate_size": 40, "num_position_embeddings": 36}
_GEMMA4 = _TEXT | {
    "global_head_dim": 16,
    "num_hidden_layers": 4,
    "sliding_window": 40,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "vocab_size_per_layer_input": 320,
    "pad_token_id": 3,
}
_GEMMA4_VISION = {
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "patch_size": 4,
    "position_embedding_size": 40,
}
_GEMMA4_TOKENS = {
    "image_token_id": 319,
    "video_token_id": 1001,  # Never sampled: transformers has the pad token in its place.
    "audio_token_id": 1002,
    "audio_config": None,
}
_VQ = {
    "base_channels": 32,
    "channel_multiplier": [1, 2, 1],
    "num_res_blocks": 1,
    "attn_resolutions": [16],
    "resolution": 32,
    "latent_channels": 8,
    "embed_dim": 4,
    "num_embeddings": 12,
}
_CODES = {f"IMGIMG{chr(65 + code % 10)}Z": 270 + code for code in range(10)}
_CODES |= {"IMGIMGBAZ": 300, "IMGIMGBBZ": 290}
_OFFERED = [[30, 60], [60, 30], [60, 60], [90, 30], [30, 90]]
TOWERS: dict[str, tuple[str, dict[str, Any]]] = {
    "llava-clip": ("Llava", _LLAMA | {"vision_config": _CLIP}),
    "llava-swin": (
        "Llava",
        _LLAMA
        | {"vision_feature_layer": -1, "vision_feature_select_strategy": "full"}
        | {
            "vision_config": {"model_type": "swin", "image_size": 44, "patch_size": 4}
            | {"embed_dim": 8, "depths": [2, 2], "num_heads": [2, 4], "window_size": 3}
            | {"mlp_ratio": 2.0, "use_absolute_embeddings": True}
        },
    ),
    "vip-llava": (
        "VipLlava",
        _LLAMA | {"vision_config": _CLIP, "vision_feature_layer": [-2, 3, 1]},
    ),
    "deepseek-vl": (
        "DeepseekVL",
        {"text_config": {"model_type": "llama", **_TEXT}, "vision_config": _SIGLIP}
        | {"image_token_id": 319},
    ),
    "janus": (
        "Janus",
        {"text_config": {"model_type": "llama", **_TEXT}, "image_token_id": 319}
        | {
            "vision_config": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
            | {"image_size": 30, "patch_size": 5, "projection_dim": 48, "depth": 3},
            "vq_config": _VQ | {"projection_dim": 48, "image_token_embed_dim": 48},
        },
    ),
    "qianfan-ocr": (
        "QianfanOCR",
        {"text_config": {"model_type": "qwen3", **_TEXT}, "image_token_id": 319}
        | {"vision_config": _INTERN | {"model_type": "qianfan_ocr_vision"}}
        | {"image_seq_length": 4},
    ),
    "glm-4.6v": (
        "Glm46V",
        {
            "text_config": _TEXT
            | {"rope_parameters": _MROPE | {"partial_rotary_factor": 1.0}, "n_routed_experts": 4}
            | {"moe_intermediate_size": 24, "num_experts_per_tok": 2}
            | {"model_type": "glm4v_moe_text"},
            "vision_config": _GLM | {"intermediate_size": 40, "image_size": 24},
            "image_token_id": 319,
        },
    ),
    "hyperclovax-v2": (
        "HyperCLOVAXVisionV2",
        {
            "text_config": {"model_type": "hyperclovax", **_TEXT, "logits_scaling": 0.5},
            "vision_config": _GLM
            | {"model_type": "qwen2_5_vl_vision", "out_hidden_size": 40, "intermediate_size": 40}
            | {"window_size": 16, "fullatt_block_indexes": [1]},
            "image_token_id": 319,
            "video_token_id": 318,
        },
    ),
    "video-llama-3": (
        "VideoLlama3",
        {
            "text_config": {"model_type": "qwen2", **_TEXT},
            "vision_config": _SIZES
            | {"model_type": "video_llama_3_vision", "hidden_size": 32, "patch_size": 4}
            | {
                "num_hidden_layers": 2,
                "rope_parameters": {"rope_type": "axial", "rope_theta": 50.0},
            },
            "image_token_id": 319,
            "video_token_id": 318,
        },
    ),
    "exaone-4.5": (
        "Exaone4_5_",
        {
            "text_config": {"model_type": "exaone4", **_TEXT, "sliding_window": 5}
            | {"layer_types": ["sliding_attention", "full_attention"]},
            "vision_config": _GLM
            | {"intermediate_size": 40, "window_size": 16, "num_key_value_heads": 2}
            | {"fullatt_block_indexes": [1]},
            "image_token_id": 319,
            "video_token_id": 318,
        },
    ),
    "got-ocr2": (
        "GotOcr2",
        _QWEN2
        | {
            "vision_config": {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}
            | {"image_size": 48, "patch_size": 4, "window_size": 5, "global_attn_indexes": [1]}
            | {"mlp_dim": 40, "output_channels": 12}
        },
    ),
    "llava-siglip": (
        "Llava",
        _LLAMA
        | {"vision_config": _SIGLIP, "vision_feature_layer": [1, -2]}
        | {"vision_feature_select_strategy": "full", "multimodal_projector_bias": False},
    ),
    "pixtral": (
        "Llava",
        _MISTRAL
        | {"vision_config": _PIXTRAL, "vision_feature_layer": -1}
        | {"vision_feature_select_strategy": "full"},
    ),
    "mistral3": ("Mistral3", _MISTRAL | {"vision_config": _PIXTRAL, "spatial_merge_size": 2}),
    "llava-next": (
        "LlavaNext",
        _LLAMA | {"vision_config": _CLIP, "image_grid_pinpoints": _OFFERED},
    ),
    "llava-onevision": (
        "LlavaOnevision",
        _QWEN2
        | {"vision_config": _SIGLIP, "image_grid_pinpoints": _OFFERED}
        | {"vision_aspect_ratio": "anyres_max_1"},
    ),
    "gemma3": (
        "Gemma3",
        {
            "text_config": _TEXT
            | {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]},
            "vision_config": _SIGLIP,
            "mm_tokens_per_image": 9,
            "image_token_index": 319,
        },
    ),
    "paligemma": (
        "PaliGemma",
        {
            "text_config": _TEXT | {"model_type": "gemma"},
            "vision_config": _SIGLIP,
            "projection_dim": 48,
            "image_token_index": 319,
        },
    ),
    "paligemma2": (
        "PaliGemma",
        {
            "text_config": _TEXT | {"model_type": "gemma2", "sliding_window": 80},
            "vision_config": _SIGLIP,
            "projection_dim": 48,
            "image_token_index": 319,
        },
    ),
    "gemma4": (
        "Gemma4",
        {
            "text_config": _GEMMA4 | {"num_kv_shared_layers": 2, "hidden_size_per_layer_input": 8},
            "vision_config": _GEMMA4_VISION | {"use_clipped_linears": True},
            **_GEMMA4_TOKENS,
        },
    ),
    "gemma4-both-ways": (
        "Gemma4",
        {
            "text_config": _GEMMA4
            | {"use_bidirectional_attention": "vision"}
            # A window that is narrower than an image.
            | {"hidden_size_per_layer_input": 0, "sliding_window": 5},
            "vision_config": _GEMMA4_VISION | {"standardize": True},
            **_GEMMA4_TOKENS,
        },
    ),
    "idefics3": (
        "Idefics3",
        {"text_config": {"model_type": "llama", **_TEXT}, "image_token_id": 319}
        | {"vision_config": _SIGLIP | {"model_type": "idefics3_vision"}, "scale_factor": 3},
    ),
    "smolvlm": (
        "SmolVLM",
        {"text_config": {"model_type": "llama", **_TEXT}, "image_token_id": 319}
        | {"vision_config": _SIGLIP | {"model_type": "smolvlm_vision"}, "scale_factor": 2},
    ),
    "internvl": (
        "InternVL",
        _QWEN2
        | {"vision_config": _INTERN, "downsample_ratio": 0.5, "image_token_id": 319}
        | {"tie_word_embeddings": False},
    ),
    "lighton-ocr": (
        "LightOnOcr",
        {"text_config": {"model_type": "qwen3", **_TEXT}, "vision_config": _PIXTRAL}
        | {"spatial_merge_size": 2, "image_token_id": 319},
    ),
    "ovis2": (
        "Ovis2",
        {"text_config": {"model_type": "qwen2", **_TEXT}, "image_token_id": 319}
        | {
            "hidden_size": 48,
            "vocab_size": 320,
            "visual_indicator_token_ids": [310, 311, 312, 313, 314],
        }
        | {
            "vision_config": _CLIP
            | {"model_type": "ovis2_vision", "image_size": 24, "vocab_size": 50}
            | {"hidden_stride": 2, "qkv_bias": True, "num_visual_indicator_tokens": 5}
        },
    ),
    "kimi-k2.5": (
        "Kimi_K25",
        {
            "text_config": {"model_type": "deepseek_v3", **_MLA},
            "vision_config": _CLIP
            | {"pos_emb_height": 6, "pos_emb_width": 6, "model_type": "kimi_k25_vision"},
            "image_token_id": 319,
            "projection_hidden_size": 32,
            "tie_word_embeddings": False,
        },
    ),
    "internvl-6b": (
        "InternVL",
        _QWEN2
        | {"vision_config": _INTERN | {"use_qk_norm": True, "norm_type": "rms_norm"}}
        | {"image_token_id": 319},
    ),
    "cohere2-vision": (
        "Cohere2Vision",
        {"text_config": _TEXT | {"model_type": "cohere2"}, "vision_config": _SIGLIP}
        | {"alignment_intermediate_size": 72, "downsample_factor": 2, "image_token_id": 319},
    ),
    "aya-vision": (
        "AyaVision",
        {"text_config": _TEXT | {"model_type": "cohere2"}, "vision_config": _SIGLIP}
        | {"downsample_factor": 3, "image_token_index": 319},
    ),
    "step-3.7": (
        "Step3p7",
        {
            "text_config": _TEXT
            | {"model_type": "step3p5", "layer_types": ["full_attention", "sliding_attention"]}
            | {"sliding_window": 5, "num_attention_groups": 2, "use_head_wise_attn_gate": True}
            | {"attention_other_setting": {"num_attention_heads": 6, "num_attention_groups": 2}}
            | {"moe_layers_enum": "1", "moe_num_experts": 4, "moe_top_k": 2}
            | {"moe_intermediate_size": 24, "share_expert_dim": 20, "use_moe_router_bias": True}
            | {"moe_router_scaling_factor": 1.5, "swiglu_limits": [0.0, 0.5]}
            | {"rope_theta": [500.0, 10_000.0], "partial_rotary_factors": [0.5, 1.0]},
            "vision_config": {"width": 32, "layers": 2, "heads": 4, "mlp_ratio": 1.5}
            | {"image_size": 52, "patch_size": 4, "ls_init_value": 0.1},
            "image_token_id": 319,
        },
    ),
    "llama4": (
        "Llama4",
        {
            "text_config": _TEXT | {"num_local_experts": 2, "intermediate_size_mlp": 40},
            "vision_config": _CLIP
            | {"model_type": "llama4_vision_model", "image_size": 24, "intermediate_size": 128}
            | {"vision_output_dim": 36, "projector_input_dim": 36, "projector_output_dim": 36},
            "image_token_index": 319,
            "tie_word_embeddings": False,
        },
    ),
    "qwen2-vl": (
        "Qwen2VL",
        _QWEN
        | {
            "vision_config": {"depth": 2, "embed_dim": 32, "hidden_size": 48, "num_heads": 4}
            | {"mlp_ratio": 2, "patch_size": 4}
        },
    ),
    "qwen2.5-vl": (
        "Qwen2_5_VL",
        _QWEN
        | {
            "vision_config": {"depth": 4, "hidden_size": 32, "out_hidden_size": 48, "num_heads": 4}
            | {"intermediate_size": 40, "patch_size": 4, "window_size": 16}
            | {"fullatt_block_indexes": [1, 3]}
        },
    ),
    "glm4v": (
        "Glm4v",
        {
            "text_config": _TEXT | {"rope_parameters": _MROPE | {"partial_rotary_factor": 1.0}},
            "vision_config": {"depth": 2, "hidden_size": 32, "out_hidden_size": 48, "num_heads": 4}
            | {"intermediate_size": 40, "patch_size": 4, "image_size": 24},
            "image_token_id": 319,
        },
    ),
    "paddleocr-vl": (
        "PaddleOCRVL",
        {
            "text_config": _TEXT | {"rope_parameters": _MROPE},
            "vision_config": _CLIP | {"model_type": "paddleocr_vl_vision", "image_size": 24},
            "image_token_id": 319,
        },
    ),
    "glm4v-moe": (
        "Glm4vMoe",
        {
            "text_config": _TEXT
            | {"rope_parameters": _MROPE | {"partial_rotary_factor": 1.0}, "n_routed_experts": 4}
            | {"moe_intermediate_size": 24, "num_experts_per_tok": 2},
            "vision_config": _GLM | {"intermediate_size": 40, "image_size": 24},
            "image_token_id": 319,
        },
    ),
    "glm-ocr": (
        "GlmOcr",
        {
            "text_config": _TEXT | {"rope_parameters": _MROPE | {"partial_rotary_factor": 1.0}},
            "vision_config": _GLM | {"intermediate_size": 56},
            "image_token_id": 319,
        },
    ),
    "qwen3.5": (
        "Qwen3_5",
        {
            "text_config": _TEXT
            | {"layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2}
            | {"linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
            | {"rope_parameters": _MROPE | {"partial_rotary_factor": 1.0}},
            "vision_config": _QWEN3_VISION,
            "image_token_id": 319,
        },
    ),
    "qwen3.5-moe": (
        "Qwen3_5Moe",
        {
            "text_config": _TEXT
            | {"layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2}
            | {"linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
            | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
            | {"shared_expert_intermediate_size": 24}
            | {"rope_parameters": _MROPE | {"partial_rotary_factor": 1.0}},
            "vision_config": _QWEN3_VISION,
            "image_token_id": 319,
        },
    ),
    "qwen3-vl-moe": (
        "Qwen3VLMoe",
        {
            "text_config": _TEXT
            | {"rope_parameters": _MROPE, "num_experts": 4, "num_experts_per_tok": 2}
            | {"moe_intermediate_size": 20, "tie_word_embeddings": False},
            "vision_config": _QWEN3_VISION | {"deepstack_visual_indexes": [0]},
            "image_token_id": 319,
            "tie_word_embeddings": False,
        },
    ),
    "llava-next-video": (
        "LlavaNextVideo",
        _LLAMA | {"vision_config": _CLIP, "image_grid_pinpoints": _OFFERED},
    ),
    "lfm2-vl": (
        "Lfm2Vl",
        {
            "text_config": {"model_type": "lfm2", **_TEXT}
            | {"layer_types": ["conv", "full_attention"]},
            "vision_config": _CLIP
            | {"model_type": "siglip2_vision_model", "num_patches": 36, "vision_use_head": False},
            "image_token_id": 319,
            "projector_hidden_size": 56,
            **{"tile_size": 24, "encoder_patch_size": 6, "min_image_tokens": 2},
            **{"max_image_tokens": 6, "max_tiles": 4},
        },
    ),
    "aria": (
        "Aria",
        {
            "text_config": _TEXT | {"moe_num_experts": 4, "moe_topk": 2},
            "vision_config": _SIGLIP | {"model_type": "idefics3_vision"},
            "projector_patch_to_query_dict": {"9": 2, "36": 4},
            "image_token_index": 319,
        },
    ),
    "blip2": (
        "Blip2",
        {
            "text_config": {"model_type": "opt", "hidden_size": 48, "ffn_dim": 40}
            | {"num_hidden_layers": 2, "num_attention_heads": 4, "word_embed_proj_dim": 48}
            | {"vocab_size": 320, "max_position_embeddings": 256},
            "vision_config": _CLIP | {"model_type": "blip_2_vision_model"},
            "qformer_config": _SIZES
            | {"hidden_size": 24, "cross_attention_frequency": 2, "use_qformer_text_input": True}
            | {"num_hidden_layers": 3},
            "num_query_tokens": 5,
            "image_token_index": 319,
        },
    ),
    "hunyuan-vl": (
        "HunYuanVL",
        {
            "text_config": _TEXT
            | {"rope_parameters": _MROPE | {"mrope_section": [1, 2, 2, 1], "alpha": 1000.0}}
            | {"attention_bias": True},
            "vision_config": _CLIP
            | {"model_type": "hunyuan_vl_vision", "patch_size": 4, "max_image_size": 24},
            "image_token_id": 319,
            "tie_word_embeddings": False,
        },
    ),
    "ernie-vl": (
        "Ernie4_5_VLMoe",
        {
            "text_config": _TEXT
            | {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": [24, 12]}
            | {"rope_parameters": _MROPE | {"rope_theta": 500_000.0}, "use_bias": True}
            | {"moe_num_shared_experts": 1, "tie_word_embeddings": False},
            "vision_config": {"depth": 2, "hidden_size": 32, "num_heads": 4, "patch_size": 4}
            | {"intermediate_size": 40},
            **{"image_token_id": 319, "image_start_token_id": 317, "image_end_token_id": 318},
            "tie_word_embeddings": False,
        },
    ),
    "qwen3-omni": (
        "Qwen3OmniMoeThinker",
        {
            "text_config": _TEXT
            | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
            | {"rope_parameters": _MROPE},
            "vision_config": _QWEN3_VISION | {"deepstack_visual_indexes": [0, 1]},
            "audio_config": {"d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2}
            | {"encoder_ffn_dim": 16, "output_dim": 48, "downsample_hidden_size": 8},
            **{"image_token_id": 319, "video_token_id": 318, "audio_token_id": 317},
            **{"vision_start_token_id": 316, "audio_start_token_id": 315},
        },
    ),
    "chameleon": (
        "Chameleon",
        {key: value for key, value in _TEXT.items() if key != "head_dim"}
        | {"vq_config": _VQ, "vocabulary_map": {"<image>": 319, **_CODES}, "swin_norm": True},
    ),
    "mllama": (
        "Mllama",
        {
            "text_config": {key: value for key, value in _TEXT.items() if key != "head_dim"}
            | {"num_hidden_layers": 5, "cross_attention_layers": [1, 3], "bos_token_id": 0}
            | {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}}
            | {"pad_token_id": 0, "eos_token_id": 1},
            "vision_config": {"hidden_size": 32, "intermediate_size": 40, "attention_heads": 4}
            | {"num_hidden_layers": 3, "num_global_layers": 2, "vision_output_dim": 96}
            | {"intermediate_layers_indices": [0, 2], "image_size": 16, "patch_size": 4},
            "image_token_index": 320,
        },
    ),
    "qwen3-vl": (
        "Qwen3VL",
        _QWEN
        | {
            "vision_config": {"depth": 4, "hidden_size": 32, "out_hidden_size": 48, "num_heads": 4}
            | {"intermediate_size": 40, "patch_size": 4, "num_position_embeddings": 36}
            | {"deepstack_visual_indexes": [0, 2]}
        },
    ),
}
"""Class of transformers without "ForConditionalGeneration", and its config."""


SPELLINGS = {
    "PixtralForConditionalGeneration": "pixtral",
    "InternS1ForConditionalGeneration": "internvl",
    "InternVLChatModel": "internvl-chat",
    "LightOnOCRForConditionalGeneration": "lighton-ocr",
    "OpenCUAForConditionalGeneration": "opencua",
    "HCXVisionV2ForCausalLM": "hyperclovax-v2",
    "KimiK25ForConditionalGeneration": "kimi-k2.5",
    "Qwen3OmniMoeForConditionalGeneration": "qwen3-omni",
    "KimiVLForConditionalGeneration": "kimi-k2.5",
}
"""Architectures that transformers does not have, and the tower that has their shape."""
OTHERS = {
    *(
        "Llava",
        "Qwen2VL",
        "Qwen2_5_VL",
        "Qwen3VL",
        "Qwen3VLMoe",
        "Qwen3_5",
        "Qwen3_5Moe",
        "Ernie4_5_VLMoe",
        "Gemma4",
    ),
}
"""Classes whose texts are tested as those of other models are, see `tests.support.tiny_models`."""
ARCHITECTURES = {
    f"{stem}ForConditionalGeneration": name
    for name, (stem, _) in reversed(TOWERS.items())
    if stem not in OTHERS
} | SPELLINGS
"""Tower of each architecture whose text model is one that other tests cover."""


def tiny_config(name: str, **changes: Any) -> Any:
    """A config of transformers; `changes` are fields that it has in place of those of the table."""
    import transformers

    stem, fields = TOWERS[name]
    config = getattr(transformers, f"{stem}Config")(**fields | changes)
    config.architectures = [f"{stem}ForConditionalGeneration"]
    return config


def tiny_tower(name: str, folder: Path, **changes: Any) -> Any:
    """The model of transformers, saved to the folder; every weight is random. `changes` as of
    `tiny_config`."""
    import torch
    import transformers

    config = tiny_config(name, **changes)
    torch.manual_seed(0)
    model = getattr(transformers, config.architectures[0])(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            shift = 1.0 if parameter.ndim == 1 and bool((parameter == 1).all()) else 0.0
            parameter.normal_(shift, 0.15)
        for buffer_name, buffer in model.named_buffers():
            _fill(buffer_name.rpartition(".")[2], buffer)
    model.save_pretrained(folder)
    if name == "kimi-k2.5":
        _as_published(model, folder)
    if name == "qianfan-ocr":
        _rename_text_layers(folder)
    return model


_BUFFERS = {
    "input_min": -1.0,
    "input_max": 1.2,
    "output_min": -0.6,
    "output_max": 0.7,
    "std_bias": 0.3,
    "std_scale": 0.8,
    "layer_scalar": 0.9,
}
"""Buffers that a checkpoint stores, and their middles."""


def _fill(name: str, buffer: Any) -> None:
    if name in _BUFFERS:
        buffer.normal_(_BUFFERS[name], 0.1)


def _as_published(model: Any, folder: Path) -> None:
    """The names of Kimi K2.5, of which transformers writes some that it does not read."""
    from safetensors.torch import load_file, save_file

    tensors = dict[str, Any]()
    for name, tensor in load_file(folder / "model.safetensors").items():
        name = name.replace("encoder.patch_embed", "patch_embed").removeprefix("model.")
        if not name.startswith("language_model."):
            tensors[name] = tensor
    for name, tensor in model.state_dict().items():
        if "language_model." in name or name.startswith("lm_head."):
            name = name.replace("model.language_model.", "model.")
            tensors[f"language_model.{name}"] = tensor.clone()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def _rename_text_layers(folder: Path) -> None:
    """Where transformers renames the layers of the text model with those of the tower."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    fixed = {
        name.replace("language_model.model.encoder.", "language_model.model."): tensor
        for name, tensor in tensors.items()
    }
    save_file(fixed, folder / "model.safetensors", {"format": "pt"})


_CHAT = (
    (r"^model\.", ""),
    (r"^vision_tower\.embeddings\.cls_token$", "vision_model.embeddings.class_embedding"),
    (
        r"^vision_tower\.embeddings\.position_embeddings$",
        "vision_model.embeddings.position_embedding",
    ),
    (
        r"^vision_tower\.embeddings\.patch_embeddings\.projection\.",
        "vision_model.embeddings.patch_embedding.",
    ),
    (r"^vision_tower\.encoder\.layer\.", "vision_model.encoder.layers."),
    (r"\.attention\.projection_layer\.", ".attn.proj."),
    (r"\.layernorm_before\.", ".norm1."),
    (r"\.layernorm_after\.", ".norm2."),
    (r"\.lambda_([12])$", r".ls\1"),
    (r"^multi_modal_projector\.layer_norm\.", "mlp1.0."),
    (r"^multi_modal_projector\.linear_1\.", "mlp1.1."),
    (r"^multi_modal_projector\.linear_2\.", "mlp1.3."),
    (r"^lm_head\.", "language_model.lm_head."),
    (r"^language_model\.(?!model\.|lm_head\.)", "language_model.model."),
)
"""Names of transformers' InternVL to those of OpenGVLab."""


def internvl_chat(folder: Path) -> Any:
    """InternVL as OpenGVLab saves it; returns the model of transformers."""
    import json
    import re

    import torch
    from safetensors.torch import load_file, save_file

    model, tensors = tiny_tower("internvl", folder), dict[str, Any]()
    for name, tensor in load_file(folder / "model.safetensors").items():
        for pattern, to in _CHAT:
            name = re.sub(pattern, to, name)
        tensors[name] = tensor
    for name in [name for name in tensors if ".attention.q_proj." in name]:
        parts = [tensors.pop(name.replace("q_proj", f"{part}_proj")) for part in "qkv"]
        tensors[name.replace("attention.q_proj", "attn.qkv")] = torch.cat(parts)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["InternVLChatModel"], "llm_config": config.pop("text_config")}
    del config["image_token_id"], config["image_token_index"]
    config["vision_config"] |= {"image_size": 24, "patch_size": 6, "qkv_bias": True}
    (folder / "config.json").write_text(json.dumps(config))
    return model


def opencua(folder: Path) -> Any:
    """Qwen2.5-VL as OpenCUA saves it, beside Qwen2; returns the model of transformers."""
    import json
    import re

    from safetensors.torch import load_file, save_file

    model, names = tiny_tower("qwen2.5-vl", folder), ((r"^(model\.)?visual\.", "vision_tower."),)
    names += ((r"^model\.(language_model\.)?", "language_model.model."),)
    names += ((r"^lm_head\.", "language_model.lm_head."),)
    tensors = dict[str, Any]()
    for name, tensor in load_file(folder / "model.safetensors").items():
        for pattern, to in names:
            name = re.sub(pattern, to, name)
        tensors[name] = tensor
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = ["OpenCUAForConditionalGeneration"]
    config["media_placeholder_token_id"] = config.pop("image_token_id")
    config["text_config"] |= {"model_type": "qwen2", "rope_parameters": {"rope_type": "default"}}
    config["text_config"]["rope_parameters"]["rope_theta"] = 10_000.0
    (folder / "config.json").write_text(json.dumps(config))
    return model


MAKERS = {"internvl-chat": internvl_chat, "opencua": opencua}
"""Checkpoints that are made of another one."""
