"""Models with C-Abstractors (Honeybee, arXiv:2312.06742): HyperCLOVA X SEED Vision, Kanana V."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.oracles.towers.plain import (
    Weights,
    attend,
    axial_angles,
    in_windows,
    patches_of,
    resized,
    siglip,
    siglip_weights,
    turned,
)
from tests.oracles.towers.sights import IMAGE_TOKEN, Images, Sight, pixels, save, sight, text_model
from tests.oracles.towers.siglip import VISION

_WIDTH = 24
_EMBED = 32


def block_weights(w: Weights, name: str, inputs: int, outputs: int) -> None:
    """The tensors of a block of RegNet under timm's names."""
    squeezed = round(inputs / 4)
    for part, *shape in (
        ("conv1.conv", outputs, inputs, 1, 1),
        ("conv2.conv", outputs, 1, 3, 3),
        ("se.fc1", squeezed, outputs, 1, 1),
        ("se.fc2", outputs, squeezed, 1, 1),
        ("conv3.conv", outputs, outputs, 1, 1),
    ):
        w.random(f"{name}.{part}.weight", *shape)
        if part.startswith("se"):
            w.random(f"{name}.{part}.bias", shape[0])
        else:
            w.norm(f"{name}.{part[:5]}.bn", outputs)
    if inputs != outputs:
        w.random(f"{name}.downsample.conv.weight", outputs, inputs, 1, 1)
        w.norm(f"{name}.downsample.bn", outputs)


def stage_weights(w: Weights, name: str, depth: int, inputs: int, outputs: int) -> None:
    """The tensors of a stage."""
    for number in range(depth):
        block_weights(w, f"{name}.b{number + 1}", inputs if number == 0 else outputs, outputs)


def over_channels(w: Weights, name: str, x: Tensor) -> Tensor:
    """LayerNorm of the channels of each place of [1, C, rows, columns]."""
    return w.layer_norm(name, x.movedim(1, -1), 1e-5).movedim(-1, 1)


def stage(w: Weights, name: str, depth: int, x: Tensor) -> Tensor:
    """[1, C, rows, columns] through blocks: 1 x 1, 3 x 3 of each channel, a weight for each channel
    from its mean, 1 x 1, and the input beside it (arXiv:2003.13678)."""
    for number in range(depth):
        here = f"{name}.b{number + 1}"
        y = F.silu(
            over_channels(w, f"{here}.conv1.bn", F.conv2d(x, w[f"{here}.conv1.conv.weight"]))
        )
        filters = w[f"{here}.conv2.conv.weight"]
        y = F.conv2d(y, filters, padding=1, groups=len(filters))
        y = F.silu(over_channels(w, f"{here}.conv2.bn", y))
        weight = y.mean((2, 3), keepdim=True)
        weight = F.conv2d(weight, w[f"{here}.se.fc1.weight"], w[f"{here}.se.fc1.bias"])
        weight = F.conv2d(F.silu(weight), w[f"{here}.se.fc2.weight"], w[f"{here}.se.fc2.bias"])
        y = F.conv2d(y * weight.sigmoid(), w[f"{here}.conv3.conv.weight"])
        y = over_channels(w, f"{here}.conv3.bn", y)
        if f"{here}.downsample.conv.weight" in w:
            x = F.conv2d(x, w[f"{here}.downsample.conv.weight"])
            x = over_channels(w, f"{here}.downsample.bn", x)
        x = F.silu(x + y)
    return x


def read_out(w: Weights, name: str, plane: Tensor) -> Tensor:
    """[1, C, rows, columns] to vectors, row by row."""
    x = plane[0].flatten(1).T
    return w.run(f"{name}.readout.2", F.silu(w.run(f"{name}.readout.0", x)))


_OFFERED = [[30, 30], [30, 60], [60, 30], [60, 60], [90, 30], [30, 90]]


@sight("HCXVisionForCausalLM")
def hyperclovax(folder: Path, architecture: str) -> Sight:
    """SigLIP but for its last layer on the whole image and its tiles; 3 x 3 vectors of each, those
    of tiles without padding and with a vector after each row."""
    model, config, text = text_model("LlamaForCausalLM")
    vision, w, name = VISION | {"num_hidden_layers": 3}, Weights(), "mm_projector"
    siglip_weights(w, "vision_model.vision_model", vision)
    w.random(f"{name}.pos_emb", 1, 36, 32)
    w.norm(f"{name}.prenorm", 32)
    stage_weights(w, f"{name}.net.0", 3, 32, 32)
    stage_weights(w, f"{name}.net.2", 3, 32, 32)
    w.linear(f"{name}.readout.0", 32, 48)
    w.linear(f"{name}.readout.2", 48, 48)
    newline = w.random("image_newline", 48)
    fields = {
        "model_type": "hyperclovax_vlm",
        "text_config": config | {"model_type": "llama"},
        "vision_config": vision,
        "image_token_id": IMAGE_TOKEN,
        "img_start_id": IMAGE_TOKEN,
        "anyres": True,
        "unpad": True,
        "possible_resolutions": _OFFERED,
        "use_nth_layer": -2,
        "mm_projector_type": "cabstractor",
        "num_queries_vis_abstractor_image": 9,
        "proj_pos_emb": True,
        "proj_prenorm": True,
    }
    own = (("model.", "language_model.model."), ("lm_head.", "language_model.lm_head."))
    save(folder, architecture, fields, w, text, *own)

    def seen(tile: Tensor) -> Tensor:
        x = siglip(w, "vision_model.vision_model", VISION, tile)
        x = w.layer_norm(f"{name}.prenorm", x) + w[f"{name}.pos_emb"][0]
        plane = stage(w, f"{name}.net.0", 3, x.T.view(1, 32, 6, 6))
        plane = plane.view(1, 32, 3, 2, 3, 2).mean((3, 5))
        return read_out(w, name, stage(w, f"{name}.net.2", 3, plane))

    # The frame of 30 x 60 pixels holds 30 x 40 in its middle: 4 of 6 columns of vectors. A square
    # has one tile.
    images: Images = [
        (pixels(1, 3, 3, 30, 30), (1, 30, 40)),
        (pixels(2, 2, 3, 30, 30), (1, 25, 25)),
    ]
    expected = []
    for (tiles, _), kept in zip(images, (slice(1, 5), slice(0, 3)), strict=True):
        whole, *parts = [seen(tile) for tile in tiles]
        plane = torch.cat([part.view(3, 3, -1) for part in parts], 1)[:, kept]
        rows = torch.cat((plane, newline.expand(3, 1, -1)), dim=1)
        expected.append(torch.cat((whole, rows.flatten(0, 1))))
    return Sight(images, expected, model)


def qwen2_vl_weights(w: Weights, prefix: str, depth: int) -> None:
    """Qwen2-VL's encoder without its merger (arXiv:2409.12191)."""
    w.random(f"{prefix}.patch_embed.proj.weight", _EMBED, 3, 2, 5, 5)
    for layer in range(depth):
        name = f"{prefix}.blocks.{layer}"
        w.norm(f"{name}.norm1", _EMBED)
        w.norm(f"{name}.norm2", _EMBED)
        w.linear(f"{name}.attn.qkv", _EMBED, 3 * _EMBED)
        w.linear(f"{name}.attn.proj", _EMBED, _EMBED)
        w.linear(f"{name}.mlp.fc1", _EMBED, 2 * _EMBED)
        w.linear(f"{name}.mlp.fc2", 2 * _EMBED, _EMBED)


def qwen2_vl(w: Weights, prefix: str, depth: int, patches: Tensor, angles: Tensor) -> Tensor:
    """[N, 3 * 2 * 5 * 5] patches with these angles to their states."""
    x = patches @ w[f"{prefix}.patch_embed.proj.weight"].flatten(1).T
    for layer in range(depth):
        name = f"{prefix}.blocks.{layer}"
        query, key, value = w.run(f"{name}.attn.qkv", w.layer_norm(f"{name}.norm1", x)).chunk(3, 1)
        seen = attend(turned(query, angles, 4), turned(key, angles, 4), value, 4)
        x = x + w.run(f"{name}.attn.proj", seen)
        inner = w.run(f"{name}.mlp.fc1", w.layer_norm(f"{name}.norm2", x))
        x = x + w.run(f"{name}.mlp.fc2", inner * (1.702 * inner).sigmoid())
    return x


@sight("KananaVForConditionalGeneration")
def kanana(folder: Path, architecture: str) -> Sight:
    """Qwen2-VL's encoder without its merger; positions are resized to the image; 2 x 2 states are
    put side by side. The abstractor takes the patches, which lie window by window, as rows."""
    model, config, text = text_model("LlamaForCausalLM", eos_token_id=IMAGE_TOKEN - 1)
    w, name, depth = Weights(), "abstractor", 2
    qwen2_vl_weights(w, "vision_model", depth)
    places = w.random(f"{name}.pos_emb", 1, 16, _EMBED)
    stage_weights(w, f"{name}.net.0", 2, _EMBED, _WIDTH)
    stage_weights(w, f"{name}.net.2", 2, 4 * _WIDTH, _WIDTH)
    w.linear(f"{name}.readout.0", _WIDTH, 48)
    w.linear(f"{name}.readout.2", 48, 48)
    vision = {"depth": depth, "embed_dim": _EMBED, "mlp_ratio": 2, "num_heads": 4, "patch_size": 5}
    projector = {"depth": 2, "encoder_hidden_size": _EMBED, "hidden_size": _WIDTH, "mlp_depth": 2}
    fields: dict[str, Any] = {
        "model_type": "kanana-1.5-v",
        "text_config": config | {"model_type": "kanana-1.5-3b-instruct"},
        "vision_config": vision | {"spatial_merge_size": 2, "temporal_patch_size": 2},
        "projector_config": projector | {"output_hidden_size": 48, "pos_emb_size": 16},
    }
    own = (("model.", "language_model.model."), ("lm_head.", "language_model.lm_head."))
    save(folder, architecture, fields, w, text, *own)
    images, expected = Images(), []
    how = {"mode": "bicubic", "align_corners": False, "antialias": True}
    for seed, (rows, columns) in enumerate(((6, 4), (2, 8), (4, 4))):
        patches = patches_of(pixels(seed, 3, rows * 5, columns * 5), 5)
        patches = patches.unflatten(1, (3, 1, 25)).repeat(1, 1, 2, 1).flatten(1)
        angles = in_windows(axial_angles(rows, columns, 8), rows, columns).flatten(0, 1)
        x = qwen2_vl(w, "vision_model", depth, patches, angles)
        x = x + resized(places[0], rows, columns, **how)
        plane = stage(w, f"{name}.net.0", 2, x.T.reshape(1, _EMBED, rows, columns))
        cut = plane.view(1, _WIDTH, rows // 2, 2, columns // 2, 2).permute(0, 1, 3, 5, 2, 4)
        plane = cut.reshape(1, 4 * _WIDTH, rows // 2, columns // 2)
        expected.append(read_out(w, name, stage(w, f"{name}.net.2", 2, plane)))
        images.append((patches, (1, rows, columns)))
    return Sight(images, expected, model)
