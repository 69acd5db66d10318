"""Step3 (arXiv:2507.19427) and Step3-VL (arXiv:2601.09668): convolutions behind a ViT."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from tests.oracles.mixtures import step3
from tests.oracles.towers.plain import Weights, attend, cells, resized
from tests.oracles.towers.sights import IMAGE_TOKEN, Images, Sight, pixels, save, sight, text_model

_SIDE, _PATCH = 52, 4
"""13 patches a side; 9 in tiles."""


def quick_gelu(x: Tensor) -> Tensor:
    """x * sigmoid(1.702 * x)."""
    return x * torch.sigmoid(1.702 * x)


def down(w: Weights, name: str, x: Tensor, stride: int, padding: int) -> Tensor:
    """A convolution of [channels, rows, columns]."""
    return F.conv2d(x[None], w[f"{name}.weight"], w[f"{name}.bias"], stride, padding)[0]


def seen(images: Images, embed: Callable[[Tensor, int], Tensor]) -> list[Tensor]:
    """The embeddings of tiles and then of the whole image, of patches that come in this order."""
    found = []
    for patches, (_, rows, columns) in images:
        tiles = rows * columns if rows * columns > 1 else 0
        parts = torch.split(patches, [81] * tiles + [169])
        found.append(torch.cat([embed(part, 9 if len(part) == 81 else 13) for part in parts]))
    return found


def images_of() -> Images:
    """Two rows of three tiles, and no tile."""
    made = Images()
    for seed, (rows, columns) in enumerate(((2, 3), (1, 1))):
        sides = [36] * (rows * columns if rows * columns > 1 else 0) + [_SIDE]
        parts = [cells(pixels(seed + 9 * n, 3, side, side), _PATCH) for n, side in enumerate(sides)]
        made.append((torch.cat(parts), (1, rows, columns)))
    return made


@sight("Step3VLForConditionalGeneration")
def step3_vl(folder: Path, architecture: str) -> Sight:
    """The class token is there four times; each half of a layer is normed before it is added."""
    step3(folder, "Step3TextForCausalLM")
    config, text, w = json.loads((folder / "config.json").read_text()), Weights(), Weights()
    text.update(load_file(folder / "model.safetensors"))
    root, width, heads = "vision_model", 32, 4
    w.random(f"{root}.embeddings.class_embedding", 1, width)
    w.random(f"{root}.embeddings.patch_embedding.weight", width, 3, _PATCH, _PATCH)
    w.random(f"{root}.embeddings.patch_embedding.bias", width)
    w.random(f"{root}.embeddings.position_embedding.weight", 170, width)
    for layer in range(2):
        name = f"{root}.transformer.layers.{layer}"
        w.linear(f"{name}.self_attn.qkv_proj", width, 3 * width)
        w.linear(f"{name}.self_attn.out_proj", width, width)
        w.linear(f"{name}.mlp.fc1", width, 40)
        w.linear(f"{name}.mlp.fc2", 40, width)
        w.norm(f"{name}.layer_norm1", width)
        w.norm(f"{name}.layer_norm2", width)
    w.random("vit_downsampler.weight", 24, width, 2, 2)
    w.random("vit_downsampler.bias", 24)
    w.random("vit_downsampler2.weight", 48, 24, 3, 3)
    w.random("vit_downsampler2.bias", 48)
    w.linear("vit_large_projector", 48, 48, bias=False)
    vision = {"hidden_size": width, "intermediate_size": 40, "output_hidden_size": 24}
    vision |= {"num_hidden_layers": 2, "num_attention_heads": heads}
    vision |= {"image_size": _SIDE, "patch_size": _PATCH}
    fields = {
        "text_config": config | {"model_type": "step3_text"},
        "vision_config": vision,
        "understand_projector_stride": 2,
        "projector_bias": False,
        "image_token_id": IMAGE_TOKEN,
    }
    save(folder, architecture, fields, w, text)

    def embed(patches: Tensor, side: int) -> Tensor:
        name = f"{root}.embeddings"
        weight = w[f"{name}.patch_embedding.weight"].flatten(1)
        x = F.linear(patches, weight, w[f"{name}.patch_embedding.bias"])
        table = w[f"{name}.position_embedding.weight"]
        how = {"mode": "bicubic", "align_corners": False, "antialias": True}
        x = x + (table[1:] if side == 13 else resized(table[1:], side, side, **how))
        first = w[f"{name}.class_embedding"] + table[:1]
        x = torch.cat((first, first, first, first, x))
        for layer in range(2):
            name = f"{root}.transformer.layers.{layer}"
            parts = w.run(f"{name}.self_attn.qkv_proj", x).chunk(3, dim=-1)
            half = w.run(f"{name}.self_attn.out_proj", attend(*parts, heads))
            x = x + w.layer_norm(f"{name}.layer_norm1", half, 1e-5)
            half = w.run(f"{name}.mlp.fc2", quick_gelu(w.run(f"{name}.mlp.fc1", x)))
            x = x + w.layer_norm(f"{name}.layer_norm2", half, 1e-5)
        plane = x[4:].T.view(width, side, side)
        plane = down(w, "vit_downsampler2", down(w, "vit_downsampler", plane, 2, 0), 2, 1)
        return w.run("vit_large_projector", plane.flatten(1).T)

    images = images_of()
    return Sight(images, seen(images, embed), None)


@sight("StepVLForConditionalGeneration")
def step_vl(folder: Path, architecture: str) -> Sight:
    """The Perception Encoder (arXiv:2504.13181): neighbouring channels turn, those of the first
    half of a head by column; learned scales."""
    model, config, text = text_model("Qwen3ForCausalLM")
    w, root, width, heads = Weights(), "vision_model", 32, 4
    w.random(f"{root}.conv1.weight", width, 3, _PATCH, _PATCH)
    w.random(f"{root}.positional_embedding", 169, width)
    w.norm(f"{root}.ln_pre", width)
    for layer in range(2):
        name = f"{root}.transformer.resblocks.{layer}"
        w.random(f"{name}.attn.in_proj_weight", 3 * width, width)
        w.random(f"{name}.attn.in_proj_bias", 3 * width)
        w.linear(f"{name}.attn.out_proj", width, width)
        w.linear(f"{name}.mlp.c_fc", width, 48)
        w.linear(f"{name}.mlp.c_proj", 48, width)
        for part in "12":
            w.norm(f"{name}.ln_{part}", width)
            w.random(f"{name}.ls_{part}.gamma", width, shift=0.5)
    for number, (inputs, outputs) in enumerate(((32, 64), (64, 128)), start=1):
        w.random(f"{root}.vit_downsampler{number}.weight", outputs, inputs, 3, 3, scale=0.05)
        w.random(f"{root}.vit_downsampler{number}.bias", outputs)
    w.linear("vit_large_projector", 128, 48, bias=False)
    vision = {"width": width, "layers": 2, "heads": heads, "mlp_ratio": 1.5, "ls_init_value": 0.1}
    vision |= {"image_size": _SIDE, "patch_size": _PATCH, "use_cls_token": False}
    fields = {
        "text_config": config | {"model_type": "qwen3"},
        "vision_config": vision,
        "projector_bias": False,
        "image_token_id": IMAGE_TOKEN,
    }
    save(folder, architecture, fields, w, text)

    def embed(patches: Tensor, side: int) -> Tensor:
        x = F.linear(patches, w[f"{root}.conv1.weight"].flatten(1))
        table = w[f"{root}.positional_embedding"]
        how = {"mode": "bilinear", "align_corners": False}
        x = x + (table if side == 13 else resized(table, side, side, **how))
        x = w.layer_norm(f"{root}.ln_pre", x, 1e-5)
        for layer in range(2):
            name = f"{root}.transformer.resblocks.{layer}"
            both = w[f"{name}.attn.in_proj_weight"], w[f"{name}.attn.in_proj_bias"]
            query, key, value = F.linear(w.layer_norm(f"{name}.ln_1", x, 1e-5), *both).chunk(3, -1)
            query, key = (rotated(part, side, heads) for part in (query, key))
            half = w.run(f"{name}.attn.out_proj", attend(query, key, value, heads))
            x = x + half * w[f"{name}.ls_1.gamma"]
            inner = w.run(f"{name}.mlp.c_fc", w.layer_norm(f"{name}.ln_2", x, 1e-5))
            x = x + w.run(f"{name}.mlp.c_proj", quick_gelu(inner)) * w[f"{name}.ls_2.gamma"]
        plane = x.T.view(width, side, side)
        for number in (1, 2):
            plane = down(w, f"{root}.vit_downsampler{number}", plane, 2, 1)
        return w.run("vit_large_projector", plane.flatten(1).T)

    images = images_of()
    return Sight(images, seen(images, embed), model)


def rotated(x: Tensor, side: int, heads: int) -> Tensor:
    """[side * side, C]: pairs of neighbouring channels of each head as complex numbers, turned."""
    pairs = torch.view_as_complex(x.unflatten(-1, (heads, -1, 2)).contiguous())
    count = pairs.shape[-1] // 2
    rates = 10_000.0 ** -(torch.arange(count) / count)
    row, column = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    angles = torch.cat([axis.reshape(-1, 1) * rates for axis in (column, row)], dim=1)
    turned = pairs * torch.polar(torch.ones_like(angles), angles)[:, None]
    return torch.view_as_real(turned).flatten(1)
