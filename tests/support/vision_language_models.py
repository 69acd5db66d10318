"""The odd traits of the language models of checkpoints that see: data for
`tests.support.tiny_models`."""

from __future__ import annotations

from typing import Any

_QWEN_EYES = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2}


def _rope(*sizes: int, **others: Any) -> dict[str, Any]:
    given = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": list(sizes)}
    return {"rope_parameters": given | others}


TRAITS: dict[str, dict[str, Any]] = {
    "LlavaForConditionalGeneration": {
        "model_type": "llama",
        "tie_word_embeddings": False,
        "vision_config": {
            "model_type": "clip_vision_model",
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_attention_heads": 2,
            "num_hidden_layers": 2,
            "image_size": 12,
            "patch_size": 4,
        },
    },
    "Qwen2VLForConditionalGeneration": {
        **_rope(1, 2, 1),
        "use_sliding_window": True,
        "sliding_window": 9,
        "max_window_layers": 2,
        "tie_word_embeddings": False,
        "vision_config": {"depth": 1, "embed_dim": 16, "hidden_size": 48, "num_heads": 2},
    },
    "Qwen2_5_VLForConditionalGeneration": {
        **_rope(1, 2, 1),
        "tie_word_embeddings": True,
        "vision_config": {**_QWEN_EYES, "out_hidden_size": 48},
    },
    "Qwen3VLForConditionalGeneration": {
        **_rope(4, 2, 2),
        "head_dim": 16,
        "attention_bias": True,
        "tie_word_embeddings": True,
        "vision_config": {
            **_QWEN_EYES,
            "out_hidden_size": 48,
            "num_position_embeddings": 16,
            "deepstack_visual_indexes": [0],
        },
    },
    "Qwen3VLMoeForConditionalGeneration": {
        **_rope(4, 2, 2),
        "head_dim": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "mlp_only_layers": [1],
        "tie_word_embeddings": False,
        "vision_config": {
            **_QWEN_EYES,
            "out_hidden_size": 48,
            "num_position_embeddings": 16,
            "deepstack_visual_indexes": [0],
        },
    },
    "HunYuanVLForConditionalGeneration": {
        **_rope(2, 2, 3, 1, rope_type="dynamic", alpha=1000.0, factor=1.0),
        "head_dim": 16,
        "attention_bias": True,
        "tie_word_embeddings": True,
        "vision_config": {
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_attention_heads": 2,
            "num_hidden_layers": 1,
            "out_hidden_size": 48,
            "text_hidden_size": 48,
            "patch_size": 4,
            "max_image_size": 16,
        },
    },
    "Ernie4_5_VLMoeForConditionalGeneration": {
        **_rope(3, 3, 2),
        "head_dim": 16,
        "use_bias": True,
        "moe_num_experts": 8,
        "moe_k": 3,
        "moe_intermediate_size": [24, 12],
        "moe_num_shared_experts": 2,
        "tie_word_embeddings": False,
        "vision_config": {**_QWEN_EYES, "hidden_size": 16},
    },
}

SPELLINGS = {
    "Ernie4_5_VLForConditionalGeneration": "Ernie4_5_VLMoeForConditionalGeneration",
    "Ernie4_5_VL_MoeForConditionalGeneration": "Ernie4_5_VLMoeForConditionalGeneration",
}

_OUTSIDE = ("vision_config", "tie_word_embeddings")


def nested(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields of a config as one that sees has them: those of the texts apart."""
    text = {name: value for name, value in fields.items() if name not in _OUTSIDE}
    return {"text_config": text} | {name: fields[name] for name in _OUTSIDE}
