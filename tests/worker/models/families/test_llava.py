"""Configs of LLaVA, as they are published."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from baton_worker.models.families.llava import llava

VISION = {
    **{"model_type": "clip_vision_model", "hidden_size": 1024, "image_size": 336},
    **{"intermediate_size": 4096, "num_attention_heads": 16, "num_hidden_layers": 24},
    **{"patch_size": 14, "projection_dim": 768, "vocab_size": 32_000},
}
TEXT = {
    **{"model_type": "llama", "max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
    "vocab_size": 32_064,
}


def config(text: dict[str, Any], vision: dict[str, Any], **fields: Any) -> SimpleNamespace:
    parts = {"text_config": SimpleNamespace(**text), "vision_config": SimpleNamespace(**vision)}
    return SimpleNamespace(**parts | fields)


def test_llava_1_5_leaves_out_what_transformers_knows() -> None:
    spec = llava(config(TEXT, VISION, image_token_index=32_000))
    tower = spec.tower
    assert (spec.hidden, spec.vocab, len(spec.layers)) == (4096, 32_064, 32)
    assert tower is not None and (tower.stack.patches.count, len(tower.stack.layers)) == (577, 23)
    assert tower.drops_class_token and not tower.taps
    assert tower.image_token == 32_000


@pytest.mark.parametrize("prefix", ["", "model."])
def test_older_and_newer_spellings_of_tensors(prefix: str) -> None:
    names = {
        f"{prefix}language_model.model.norm.weight": "model.norm.weight",
        "language_model.lm_head.weight": "lm_head.weight",
        "model.language_model.norm.weight": "model.norm.weight",
        f"{prefix}vision_tower.vision_model.pre_layrnorm.bias": "vision_tower.pre_layrnorm.bias",
        f"{prefix}vision_tower.pre_layrnorm.bias": "vision_tower.pre_layrnorm.bias",
        f"{prefix}multi_modal_projector.linear_1.bias": "multi_modal_projector.linear_1.bias",
    }
    for name, wanted in names.items():
        for pattern, replacement in llava(config(TEXT, VISION)).tensors.renames:
            name = re.sub(pattern, replacement, name)
        assert name == wanted


@pytest.mark.parametrize(
    ("text", "vision", "fields", "words"),
    [
        ({"model_type": "gpt2"}, {}, {}, "text_config.model_type gpt2"),
        ({}, {"model_type": "vit"}, {}, "vision_config.model_type vit"),
        ({}, {"model_type": "siglip_vision_model"}, {}, "SigLIP has no class token"),
    ],
)
def test_what_is_not_supported_is_named(
    text: dict[str, Any], vision: dict[str, Any], fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(AttributeError, match=words):
        llava(config(TEXT | text, VISION | vision, **fields))
