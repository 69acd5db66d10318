"""Tiny models whose images have positions on three axes, with all of their files, and what
transformers makes of a conversation.

Like `tests.support.tiny_models`, importing this file costs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support import tiny_llava
from tests.support.tiny_towers import tiny_tower

PROCESSORS = {
    "qwen2-vl": "Qwen2VLImageProcessor",
    "qwen2.5-vl": "Qwen2VLImageProcessor",
    "qwen3-vl": "Qwen2VLImageProcessor",
    "qwen3-omni": "Qwen2VLImageProcessor",
    "glm4v": "Glm4vImageProcessor",
    "glm4v-moe": "Glm4vImageProcessor",
    "glm-ocr": "Glm46VImageProcessor",
    "qwen3.5": "Qwen2VLImageProcessor",
    "hunyuan-vl": "HunYuanVLImageProcessor",
    "paddleocr-vl": "PaddleOCRVLImageProcessor",
    "ernie-vl": "Ernie4_5_VLMoeImageProcessor",
}
"""By the name of the tower in `tiny_towers.TOWERS`."""
_IMAGE = tiny_llava.IMAGE_TOKEN
_AROUND = {"qwen3-omni": ("<|vision_start|>", "<|vision_end|>")}
"""Tokens around an image, of models that find their images by them."""


def save(folder: Path, name: str) -> Any:
    """Save model, tokenizer and processor; returns the transformers model."""
    model = tiny_tower(name, folder)
    token = tiny_llava.save_tokenizer(folder, _marked(tiny_llava.CHAT_TEMPLATE, name))
    added = _add(folder, *_AROUND.get(name, ()))
    model.model.config.image_token_id = token
    model.generation_config.eos_token_id = None
    config = json.loads((folder / "config.json").read_text())
    named = {"image_token_id": token}
    if _has_own_experts(model):  # Tokens of every conversation.
        named |= {"image_start_token_id": 2, "image_end_token_id": 4}
    named |= {"vision_start_token_id": added[0]} if added else {}
    for field, value in named.items():
        setattr(model.config, field, value)
    (folder / "config.json").write_text(json.dumps(config | named))
    settings = {
        "image_processor_type": PROCESSORS[name],
        **{"patch_size": model.config.vision_config.patch_size, "min_pixels": 64},
        **{"temporal_patch_size": getattr(model.config.vision_config, "temporal_patch_size", 1)},
        **{"merge_size": 2},
        **{"max_pixels": 1024, "size": {"shortest_edge": 64, "longest_edge": 1024}},
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return model


def continued(
    model: Any, folder: Path, name: str, text: str, images: Sequence[Any], count: int
) -> tuple[list[int], list[float]]:
    """What transformers writes greedily after a rendered conversation: ids and log-probabilities.

    Args:
        text: the conversation with one image token per image.
    """
    import torch
    import transformers
    from tokenizers import Tokenizer

    text = _marked(text, name)
    processor = getattr(transformers, f"{PROCESSORS[name]}Pil").from_pretrained(folder)
    seen = processor(list(images), return_tensors="pt")
    for grid in seen["image_grid_thw"].tolist():
        tokens = grid[0] * grid[1] * grid[2] // 4
        tokens += grid[1] // 2 + 2 if name == "hunyuan-vl" else 0
        text = text.replace(tiny_llava.IMAGE_TOKEN, "<IMAGE>" * tokens, 1)
    text = text.replace("<IMAGE>", tiny_llava.IMAGE_TOKEN)
    ids = torch.tensor([Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids])
    out = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        **_types(model, ids, name),
        pixel_values=seen["pixel_values"],
        image_grid_thw=seen["image_grid_thw"],
        max_new_tokens=count,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    tokens = out.sequences[0, ids.shape[1] :].tolist()
    scores = [row[0].log_softmax(-1) for row in out.logits]
    return tokens, [score[token].item() for score, token in zip(scores, tokens, strict=True)]


def _marked(text: str, name: str) -> str:
    """A conversation, or a template of some, with the tokens around each image."""
    return text.replace(_IMAGE, _IMAGE.join(_AROUND.get(name, ("", ""))))


def _add(folder: Path, *tokens: str) -> list[int]:
    """Add special tokens to a tokenizer; returns their ids."""
    from tokenizers import Tokenizer

    file = folder / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.add_special_tokens(list(tokens))
    tokenizer.save(str(file))
    return [tokenizer.token_to_id(token) for token in tokens]


def _types(model: Any, ids: Any, name: str) -> dict[str, Any]:
    """Which tokens are of images, and in a model with experts of images alone which they take."""
    import torch

    if name in _AROUND:
        return {}
    found = {"mm_token_type_ids": (ids == model.config.image_token_id).int()}
    if not _has_own_experts(model):
        return found
    config = model.config
    seen = [config.image_token_id, config.image_start_token_id, config.image_end_token_id]
    return found | {"moe_mm_token_type_ids": torch.isin(ids, torch.tensor(seen)).int()}


def _has_own_experts(model: Any) -> bool:
    """Whether the model has experts of images alone."""
    return model.config.model_type.startswith("ernie4_5_vl")
