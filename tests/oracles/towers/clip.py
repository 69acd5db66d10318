"""Models with CLIP's encoder: MiniMax-VL-01."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from tests.oracles.checkpoints import source
from tests.oracles.mixtures import minimax_text_01
from tests.oracles.towers.plain import Weights, attend, cells
from tests.oracles.towers.sights import IMAGE_TOKEN, Images, Sight, pixels, save, sight

VISION: dict[str, Any] = {
    "model_type": "clip_vision_model",
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 30,
    "patch_size": 5,
}
_ROOT = "vision_tower.vision_model"
_OFFERED = [[30, 60], [60, 30], [60, 60]]


def weights() -> Weights:
    """The tensors of tower and projector."""
    w = Weights()
    w.random(f"{_ROOT}.embeddings.class_embedding", 32)
    w.random(f"{_ROOT}.embeddings.patch_embedding.weight", 32, 3, 5, 5)
    w.random(f"{_ROOT}.embeddings.position_embedding.weight", 37, 32)
    w.norm(f"{_ROOT}.pre_layrnorm", 32)
    w.norm(f"{_ROOT}.post_layernorm", 32)
    for layer in range(3):
        name = f"{_ROOT}.encoder.layers.{layer}"
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            w.linear(f"{name}.self_attn.{part}", 32, 32)
        w.linear(f"{name}.mlp.fc1", 32, 40)
        w.linear(f"{name}.mlp.fc2", 40, 32)
        w.norm(f"{name}.layer_norm1", 32)
        w.norm(f"{name}.layer_norm2", 32)
    w.linear("multi_modal_projector.linear_1", 32, 48)
    w.linear("multi_modal_projector.linear_2", 48, 48)
    w.random("image_newline", 48)
    return w


def seen(w: Weights, tile: Tensor) -> Tensor:
    """The patches behind the last layer but one, projected, [6, 6, 48]."""
    x = F.linear(cells(tile, 5), w[f"{_ROOT}.embeddings.patch_embedding.weight"].flatten(1))
    x = torch.cat((w[f"{_ROOT}.embeddings.class_embedding"][None], x))
    x = x + w[f"{_ROOT}.embeddings.position_embedding.weight"]
    x = w.layer_norm(f"{_ROOT}.pre_layrnorm", x, 1e-5)
    for layer in range(2):
        name = f"{_ROOT}.encoder.layers.{layer}"
        normed = w.layer_norm(f"{name}.layer_norm1", x, 1e-5)
        parts = [w.run(f"{name}.self_attn.{part}_proj", normed) for part in "qkv"]
        x = x + w.run(f"{name}.self_attn.out_proj", attend(parts[0], parts[1], parts[2], 4))
        inner = w.run(f"{name}.mlp.fc1", w.layer_norm(f"{name}.layer_norm2", x, 1e-5))
        x = x + w.run(f"{name}.mlp.fc2", inner * torch.sigmoid(1.702 * inner))
    name = "multi_modal_projector.linear_"
    return w.run(f"{name}2", F.gelu(w.run(f"{name}1", x[1:]))).view(6, 6, -1)


@sight("MiniMaxVL01ForConditionalGeneration")
def minimax_vl_01(folder: Path, architecture: str) -> Sight:
    """LLaVA-NeXT's tiles beside a text model of linear attention (arXiv:2501.08313)."""
    minimax_text_01(folder, "MiniMaxText01ForCausalLM")
    model, _, _ = source("MiniMaxForCausalLM", num_attention_heads=8, head_dim=8)
    config, text, w = json.loads((folder / "config.json").read_text()), Weights(), weights()
    text.update(load_file(folder / "model.safetensors"))
    fields = {
        "text_config": config,
        "vision_config": VISION,
        "image_token_index": IMAGE_TOKEN,
        "image_grid_pinpoints": _OFFERED,
        "vision_feature_layer": -2,
        "vision_feature_select_strategy": "default",
    }
    own = (("model.", "language_model.model."), ("lm_head.", "language_model.lm_head."))
    save(folder, architecture, fields, w, text, *own)
    # The frame of 30 x 60 pixels holds 30 x 45 in its middle: a column of patches is cut off at
    # either side.
    images: Images = [
        (pixels(1, 3, 3, 30, 30), (1, 30, 45)),
        (pixels(2, 3, 3, 30, 30), (1, 30, 60)),
    ]
    expected = []
    for (tiles, _), kept in zip(images, (slice(1, 11), slice(0, 12)), strict=True):
        whole, *parts = [seen(w, tile) for tile in tiles]
        ends = w["image_newline"].expand(6, 1, -1)
        plane = torch.cat((torch.cat(parts, dim=1)[:, kept], ends), dim=1)
        expected.append(torch.cat((whole.flatten(0, 1), plane.flatten(0, 1))))
    return Sight(images, expected, model)
