"""Models with SAM's encoder, which transformers has: DeepSeek-OCR and DeepSeek-OCR 2."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from tests.oracles.checkpoints import renamed
from tests.oracles.towers.plain import Weights, attend, resized
from tests.oracles.towers.sights import Grid, Images, Sight, pixels, save, sight

_SAM = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "mlp_dim": 24}
_SAM |= {"global_attn_indexes": [1], "output_channels": 8}
_OWN = (
    *(("layer_norm", "norm"), ("neck.conv1", "neck.0"), ("neck.conv2", "neck.2")),
    *(("neck.norm1", "neck.1"), ("neck.norm2", "neck.3"), ("proj.conv1", "net_2")),
    *(("proj.conv2", "net_3"), ("patch_embed.projection", "patch_embed.proj")),
    *(("layers.", "blocks."),),
)
"""Names of transformers to DeepSeek's own, in order."""
_CLIP = "model.vision_model"
_SIZES = {"hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 2, "vocab_size": 320}
_SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2}
_TEXT = {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2}
_TEXT |= {"moe_intermediate_size": 20, "topk_method": "greedy"}


def cut(view: Tensor, patch: int) -> Tensor:
    """A view [3, H, W] as mm-preprocess sends it: patches row by row."""
    return F.unfold(view[None], patch, stride=patch)[0].T


def views(seed: int, whole: int, tile: int, grid: Grid) -> list[Tensor]:
    """Random pixels of a whole image and of its tiles."""
    count = grid[1] * grid[2] if grid[1] * grid[2] > 1 else 0
    tiles = pixels(seed + 10, count, 3, tile, tile) if count else []
    return [pixels(seed, 3, whole, whole), *tiles]


@torch.no_grad()
def randomised(model: Any, w: Weights) -> Any:
    """The model with random numbers everywhere."""
    for name, parameter in model.named_parameters():
        norm = parameter.ndim == 1 and "norm" in name and name.endswith("weight")
        parameter.copy_(w.random(name, *parameter.shape, shift=float(norm)))
    w.clear()
    return model.eval()


def whole_model(folder: Path) -> Any:
    """DeepSeek-OCR 2 of transformers, saved to the folder."""
    import transformers

    vision = {"image_size": 128, "patch_size": 2, "downsample_channels": [8, 16]}
    config = transformers.DeepseekOcr2Config(
        vision_config={"sam_config": _SAM | vision, "encoder_config": _SIZES | {"hidden_size": 16}},
        text_config=_SIZES | _TEXT | {"mlp_layer_types": ["dense", "sparse"]},
        image_token_id=302,
    )
    model = randomised(transformers.DeepseekOcr2ForConditionalGeneration(config), Weights())
    model.save_pretrained(folder)
    return model


def sam(w: Weights) -> Any:
    """SAM's encoder of transformers on 16 x 16 patches of 4 pixels, in windows of 5 x 5."""
    from transformers.models.deepseek_ocr2 import modeling_deepseek_ocr2 as m
    from transformers.models.deepseek_ocr2.configuration_deepseek_ocr2 import (
        DeepseekOcr2SamVisionConfig,
    )

    sizes = {"image_size": 64, "patch_size": 4, "window_size": 5, "downsample_channels": [12, 32]}
    config = DeepseekOcr2SamVisionConfig(**_SAM | sizes)
    model = randomised(m.DeepseekOcr2SamVisionEncoder(config), Weights())
    tensors = {name: t.detach().clone() for name, t in model.state_dict().items()}
    own = renamed(tensors, *_OWN)
    w.update({f"model.sam_model.{name}": tensor for name, tensor in own.items()})
    return model


def clip(w: Weights) -> None:
    """Two layers of CLIP with positions of 3 x 3 patches."""
    w.random(f"{_CLIP}.embeddings.class_embedding", 32)
    w.random(f"{_CLIP}.embeddings.patch_embedding.weight", 32, 3, 2, 2)
    w.random(f"{_CLIP}.embeddings.position_embedding.weight", 10, 32)
    w.norm(f"{_CLIP}.pre_layrnorm", 32)
    for layer in range(2):
        name = f"{_CLIP}.transformer.layers.{layer}"
        w.linear(f"{name}.self_attn.qkv_proj", 32, 96)
        w.linear(f"{name}.self_attn.out_proj", 32, 32)
        w.linear(f"{name}.mlp.fc1", 32, 128)
        w.linear(f"{name}.mlp.fc2", 128, 32)
        w.norm(f"{name}.layer_norm1", 32)
        w.norm(f"{name}.layer_norm2", 32)
    w.linear("model.projector.layers", 64, 48)
    w.random("model.image_newline", 48)
    w.random("model.view_seperator", 48)


def seen(w: Weights, front: Any, view: Tensor) -> Tensor:
    """A view to embeddings [side, side, 48]."""
    states = front(view[None]).last_hidden_state[0]
    side = states.shape[1]
    first = states.flatten(1).T
    table = w[f"{_CLIP}.embeddings.position_embedding.weight"]
    places = table[1:]
    if side != 3:
        places = resized(places, side, side, mode="bicubic", antialias=True, align_corners=False)
    token = w[f"{_CLIP}.embeddings.class_embedding"] + table[0]
    x = torch.cat((token[None], first + places))
    x = w.layer_norm(f"{_CLIP}.pre_layrnorm", x, 1e-5)
    for layer in range(2):
        name = f"{_CLIP}.transformer.layers.{layer}"
        parts = w.run(f"{name}.self_attn.qkv_proj", w.layer_norm(f"{name}.layer_norm1", x, 1e-5))
        x = x + w.run(f"{name}.self_attn.out_proj", attend(*parts.chunk(3, dim=-1), 4))
        inner = w.run(f"{name}.mlp.fc1", w.layer_norm(f"{name}.layer_norm2", x, 1e-5))
        x = x + w.run(f"{name}.mlp.fc2", inner * torch.sigmoid(1.702 * inner))
    both = torch.cat((x[1:], first), dim=-1)
    return w.run("model.projector.layers", both).view(side, side, -1)


@sight("DeepseekOCRForCausalLM")
def deepseek_ocr(folder: Path, architecture: str) -> Sight:
    """Tiles side by side, then the whole image, each row with its end, and a separator; the whole
    image has 4 x 4 embeddings, a tile of 40 pixels 3 x 3."""
    model, w, text = whole_model(folder), Weights(), Weights()
    for name, tensor in load_file(folder / "model.safetensors").items():
        if re.match(r"model\.(layers|embed_tokens|norm)\.|lm_head\.", name):
            text[name] = tensor
    front = sam(w)
    clip(w)
    width = {
        "sam_vit_b": {"width": 16, "layers": 2, "heads": 2, "global_attn_indexes": [1]}
        | {"mlp_dim": 24, "output_channels": 8, "window_size": 5, "patch_size": 4}
        | {"image_size": 64, "downsample_channels": [12, 32]},
        "clip-l-14-224": {"width": 32, "layers": 2, "heads": 4, "image_size": 6, "patch_size": 2},
    }
    fields = {
        "language_config": _SIZES | _TEXT | {"use_mla": False, "first_k_dense_replace": 1},
        "vision_config": {"width": width},
        "projector_config": {"projector_type": "linear", "input_dim": 64, "n_embed": 48},
    }
    save(folder, architecture, fields, w, text)
    added = {"added_tokens": [{"id": 301, "content": "<image>"}]}
    (folder / "tokenizer.json").write_text(json.dumps(added))
    grids: list[Grid] = [(1, 1, 2), (1, 1, 1)]
    images, expected, newline = Images(), list[Tensor](), w["model.image_newline"]
    for number, grid in enumerate(grids):
        parts = views(number, 64, 40, grid)
        whole, *tiles = [seen(w, front, view) for view in parts]
        planes = [torch.cat(tiles, dim=1), whole] if tiles else [whole]
        rows = [
            torch.cat((plane, newline.expand(len(plane), 1, -1)), dim=1).flatten(0, 1)
            for plane in planes
        ]
        expected.append(torch.cat((*rows, w["model.view_seperator"][None])))
        images.append((torch.cat([cut(view, 4) for view in parts]), grid))
    return Sight(images, expected, model, 301)


@sight("DeepseekOCR2ForCausalLM", "DeepseekOcr2ForConditionalGeneration")
def deepseek_ocr2(folder: Path, architecture: str) -> Sight:
    """The whole model is one of transformers, which has 256 queries for a whole image and 144 for a
    tile: 64 x 64 and 48 x 48 patches."""
    model = whole_model(folder)
    fields = json.loads((folder / "config.json").read_text()) | {"architectures": [architecture]}
    (folder / "config.json").write_text(json.dumps(fields))
    grids: list[Grid] = [(1, 2, 1)]  # Large images take a second each.
    images, expected = Images(), list[Tensor]()
    for number, grid in enumerate(grids):
        whole, *tiles = views(number, 128, 96, grid)
        local = {"pixel_values_local": torch.stack(tiles)} if tiles else {}
        found = model.get_image_features(whole[None], **local, num_local_patches=[len(tiles)])
        expected += found.pooler_output
        images.append((torch.cat([cut(view, 2) for view in (whole, *tiles)]), grid))
    return Sight(images, expected, model, 302)
