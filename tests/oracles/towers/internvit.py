"""Models with InternViT (arXiv:2312.14238): Skywork R1V, H2OVL-Mississippi."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.oracles.towers.plain import Weights, attend, cells, in_windows
from tests.oracles.towers.sights import Images, Sight, pixels, save, sight, text_model

VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 24,
    "patch_size": 6,
    "qkv_bias": True,
    "qk_normalization": False,
    "norm_type": "layer_norm",
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-6,
}


def weights() -> Weights:
    """The tensors of tower and projector."""
    w, width = Weights(), 32
    w.random("vision_model.embeddings.class_embedding", 1, 1, width)
    w.random("vision_model.embeddings.patch_embedding.weight", width, 3, 6, 6)
    w.random("vision_model.embeddings.patch_embedding.bias", width)
    w.random("vision_model.embeddings.position_embedding", 1, 17, width)
    for layer in range(2):
        name = f"vision_model.encoder.layers.{layer}"
        w.linear(f"{name}.attn.qkv", width, 3 * width)
        w.linear(f"{name}.attn.proj", width, width)
        w.linear(f"{name}.mlp.fc1", width, 40)
        w.linear(f"{name}.mlp.fc2", 40, width)
        for half in (1, 2):
            w.norm(f"{name}.norm{half}", width)
            w.random(f"{name}.ls{half}", width)
    w.norm("mlp1.0", 4 * width)
    w.linear("mlp1.1", 4 * width, 48)
    w.linear("mlp1.3", 48, 48)
    return w


def seen(w: Weights, tile: Tensor) -> Tensor:
    """A tile to embeddings: the class token goes, 2 x 2 patches become one."""
    root = "vision_model.embeddings"
    x = F.linear(
        cells(tile, 6),
        w[f"{root}.patch_embedding.weight"].flatten(1),
        w[f"{root}.patch_embedding.bias"],
    )
    x = torch.cat((w[f"{root}.class_embedding"][0], x)) + w[f"{root}.position_embedding"][0]
    for layer in range(2):
        name = f"vision_model.encoder.layers.{layer}"
        parts = w.run(f"{name}.attn.qkv", w.layer_norm(f"{name}.norm1", x)).chunk(3, dim=-1)
        x = x + w[f"{name}.ls1"] * w.run(f"{name}.attn.proj", attend(*parts, 4))
        inner = F.gelu(w.run(f"{name}.mlp.fc1", w.layer_norm(f"{name}.norm2", x)))
        x = x + w[f"{name}.ls2"] * w.run(f"{name}.mlp.fc2", inner)
    x = w.layer_norm("mlp1.0", in_windows(x[1:], 4, 4).flatten(1), 1e-5)
    return w.run("mlp1.3", F.gelu(w.run("mlp1.1", x)))


@sight("SkyworkR1VChatModel", "H2OVLChatModel")
def internvl_chat(folder: Path, architecture: str) -> Sight:
    """The image token is the one that the tokenizer added, or the seventh from the end."""
    h2o = architecture.startswith("H2O")
    kind = "Mistral" if h2o else "Qwen2"
    model, config, text = text_model(f"{kind}ForCausalLM")
    fields = {
        "llm_config": config | {"model_type": kind.lower()},
        "vision_config": VISION,
        "downsample_ratio": 0.5,
        "ps_version": "v2",
        "select_layer": -1,
        "use_msac": h2o,
    }
    w = weights()
    own = (("model.", "language_model.model."), ("lm_head.", "language_model.lm_head."))
    save(folder, architecture, fields, w, text, *own)
    if h2o:
        added = {"added_tokens_decoder": {"300": {"content": "<IMG_CONTEXT>"}}}
        (folder / "tokenizer_config.json").write_text(json.dumps(added))
    images: Images = [(pixels(1, 3, 3, 24, 24), (1, 1, 2)), (pixels(2, 1, 3, 24, 24), (1, 1, 1))]
    expected = [torch.cat([seen(w, tile) for tile in tiles]) for tiles, _ in images]
    return Sight(images, expected, model, 300 if h2o else 320 - 7)
