"""Models whose tiles are rows with a vector after each: DeepSeek-VL2."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.oracles.towers.plain import Weights, attend, cells
from tests.oracles.towers.sights import Images, Sight, pixels, save, sight, text_model

VISION: dict[str, Any] = {
    "image_size": 20,
    "patch_size": 4,
    "width": 32,
    "layers": 2,
    "heads": 4,
    "mlp_ratio": 1.5,
}
_TEXT = {
    "kv_lora_rank": 16,
    "q_lora_rank": None,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "num_key_value_heads": 6,
    "topk_method": "greedy",
}


def weights() -> Weights:
    """SigLIP under timm's names, and a projector of two layers."""
    w, width, inner = Weights(), 32, 48
    w.random("vision.patch_embed.proj.weight", width, 3, 4, 4)
    w.random("vision.patch_embed.proj.bias", width)
    w.random("vision.pos_embed", 1, 25, width)
    w.norm("vision.norm", width)
    w.random("vision.attn_pool.latent", 1, 1, width)
    for layer in range(2):
        name = f"vision.blocks.{layer}"
        w.linear(f"{name}.attn.qkv", width, 3 * width)
        w.linear(f"{name}.attn.proj", width, width)
        w.linear(f"{name}.mlp.fc1", width, inner)
        w.linear(f"{name}.mlp.fc2", inner, width)
        w.norm(f"{name}.norm1", width)
        w.norm(f"{name}.norm2", width)
    w.linear("projector.layers.0", 4 * width, 48)
    w.linear("projector.layers.2", 48, 48)
    w.random("image_newline", 48)
    w.random("view_seperator", 48)
    return w


def seen(w: Weights, tile: Tensor) -> Tensor:
    """A tile of 5 x 5 patches to 3 x 3 embeddings, [3, 3, 48]: zeros fill up the last windows."""
    name = "vision.patch_embed.proj"
    x = F.linear(cells(tile, 4), w[f"{name}.weight"].flatten(1), w[f"{name}.bias"])
    x = x + w["vision.pos_embed"][0]
    for layer in range(2):
        name = f"vision.blocks.{layer}"
        parts = w.run(f"{name}.attn.qkv", w.layer_norm(f"{name}.norm1", x)).chunk(3, dim=-1)
        x = x + w.run(f"{name}.attn.proj", attend(*parts, 4))
        inner = w.run(f"{name}.mlp.fc1", w.layer_norm(f"{name}.norm2", x))
        x = x + w.run(f"{name}.mlp.fc2", F.gelu(inner, approximate="tanh"))
    plane = torch.zeros(6, 6, 32)
    plane[:5, :5] = w.layer_norm("vision.norm", x).view(5, 5, 32)
    windows = plane.view(3, 2, 3, 2, 32).permute(0, 2, 4, 1, 3).flatten(2)
    return w.run("projector.layers.2", F.gelu(w.run("projector.layers.0", windows)))


@sight("DeepseekVLV2ForCausalLM")
def deepseek_vl2(folder: Path, architecture: str) -> Sight:
    """The whole image, a separator, and the tiles side by side (arXiv:2412.10302)."""
    model, config, text = text_model("DeepseekV2ForCausalLM", **_TEXT)
    w = weights()
    fields = {
        "language_config": config | _TEXT | {"use_mla": True},
        "vision_config": VISION,
        "projector_config": {"input_dim": 32, "n_embed": 48, "model_type": "mlp_projector"},
        "tile_tag": "2D",
        "global_view_pos": "head",
        "candidate_resolutions": [[20, 20], [20, 40], [40, 20]],
    }
    own = (("model.", "language.model."), ("lm_head.", "language.lm_head."))
    save(folder, architecture, fields, w, text, *own)
    added = {"added_tokens": [{"id": 301, "content": "<image>"}]}
    (folder / "tokenizer.json").write_text(json.dumps(added))
    images: Images = [(pixels(1, 3, 3, 20, 20), (1, 1, 2)), (pixels(2, 2, 3, 20, 20), (1, 1, 1))]
    newline, expected = w["image_newline"], []
    for tiles, _ in images:
        whole, *parts = [seen(w, tile) for tile in tiles]
        planes = [
            torch.cat((plane, newline.expand(3, 1, -1)), dim=1).flatten(0, 1)
            for plane in (whole, torch.cat(parts, dim=1))
        ]
        expected.append(torch.cat((planes[0], w["view_seperator"][None], planes[1])))
    return Sight(images, expected, model, 301)
