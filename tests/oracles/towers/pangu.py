"""openPangu-VL: windows of patches, and mergers behind several layers."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.oracles.towers.plain import (
    Weights,
    attend,
    axial_angles,
    cells,
    in_windows,
    patches_of,
    turned,
)
from tests.oracles.towers.sights import IMAGE_TOKEN, Images, Sight, pixels, save, sight, text_model
from tests.oracles.towers.siglip import SectionedRotary

_ROOT, _WIDTH, _HEADS, _PATCH, _DEPTH = "visual", 32, 4, 4, 4
_WINDOW = 4
"""Patches along a side."""
_TEXT = {"attention_bias": True, "mlp_bias": False, "rope_parameters": None, "head_dim": 8}


def weights() -> Weights:
    """Tensors of the tower; the last but two and the last layer have mergers."""
    w = Weights()
    w.random(f"{_ROOT}.patch_embed.proj.weight", _WIDTH, 3, 2, _PATCH, _PATCH)
    for layer in range(_DEPTH):
        name = f"{_ROOT}.blocks.{layer}"
        w.linear(f"{name}.attn.qkv", _WIDTH, 3 * _WIDTH)
        w.linear(f"{name}.attn.proj", _WIDTH, _WIDTH)
        for part in ("gate_proj", "up_proj"):
            w.linear(f"{name}.mlp.{part}", _WIDTH, 40)
        w.linear(f"{name}.mlp.down_proj", 40, _WIDTH)
        w.norm(f"{name}.norm1", _WIDTH, bias=False)
        w.norm(f"{name}.norm2", _WIDTH, bias=False)
    w.norm(f"{_ROOT}.final_layernorm", _WIDTH, bias=False)
    for number in range(2):
        w.norm(f"{_ROOT}.merger.{number}.ln_q", _WIDTH, bias=False)
        w.linear(f"{_ROOT}.merger.{number}.mlp.0", 128, 128)
        w.linear(f"{_ROOT}.merger.{number}.mlp.2", 128, 44)
    w.linear(f"{_ROOT}.vision_projection.fc1", 44, 48)
    return w


def in_two_frames(patches: Tensor) -> Tensor:
    """Patches of an image that is there twice, [N, 3 * 2 * patch * patch]."""
    return patches.unflatten(1, (3, 1, -1)).expand(-1, -1, 2, -1).flatten(1)


def seen(w: Weights, image: Tensor, rows: int, columns: int) -> Tensor:
    """The embeddings of an image."""
    weight = w[f"{_ROOT}.patch_embed.proj.weight"].flatten(1)
    x = F.linear(in_two_frames(cells(image, _PATCH)), weight)
    angles = axial_angles(rows, columns, _WIDTH // _HEADS)
    row, column = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    window = (row // _WINDOW * columns + column // _WINDOW).flatten()
    apart = torch.where(window[:, None] == window, 0.0, -torch.inf)
    total, merged = torch.tensor(0.0), {1: 1, 3: 0}
    for layer in range(_DEPTH):
        name = f"{_ROOT}.blocks.{layer}"
        query, key, value = w.run(f"{name}.attn.qkv", w.rms_norm(f"{name}.norm1", x)).chunk(3, -1)
        query, key = turned(query, angles, _HEADS), turned(key, angles, _HEADS)
        bias = None if layer in (1, 3) else apart
        x = x + w.run(f"{name}.attn.proj", attend(query, key, value, _HEADS, bias))
        normed = w.rms_norm(f"{name}.norm2", x)
        gate, up = (w.run(f"{name}.mlp.{part}_proj", normed) for part in ("gate", "up"))
        x = x + w.run(f"{name}.mlp.down_proj", F.silu(gate) * up)
        if layer in merged:
            name = f"{_ROOT}.merger.{merged[layer]}"
            own = w.rms_norm(f"{name}.ln_q", w.rms_norm(f"{_ROOT}.final_layernorm", x))
            inner = F.gelu(w.run(f"{name}.mlp.0", in_windows(own, rows, columns).flatten(1)))
            total = total + w.run(f"{name}.mlp.2", inner)
    return w.run(f"{_ROOT}.vision_projection.fc1", F.silu(total))


@sight("OpenPanguVLForConditionalGeneration")
def openpangu_vl(folder: Path, architecture: str) -> Sight:
    """Beside openPangu Embedded, which is Llama with biases in its attention."""
    model, config, text = text_model("LlamaForCausalLM", **_TEXT)
    w = weights()
    vision = {"depth": _DEPTH, "hidden_size": _WIDTH, "intermediate_size": 40, "num_heads": _HEADS}
    vision |= {"patch_size": _PATCH, "out_hidden_size": 44, "window_size": _WINDOW * _PATCH}
    vision |= {"fullatt_block_indexes": [1, 3], "mm_unit_vision_select_layer": [-1, -3]}
    del config["rope_parameters"]
    sections = {"type": "default", "mrope_section": [2, 1, 1], "mrope_interleaved": True}
    fields = {"bias": True, "rope_scaling": sections, "rope_theta": 10_000.0}
    fields |= {"vision_config": vision, "image_token_id": IMAGE_TOKEN}
    save(folder, architecture, config | fields, w, text)
    images, expected = Images(), []
    for seed, (rows, columns) in enumerate(((6, 10), (4, 4), (2, 8))):
        image = pixels(seed, 3, rows * _PATCH, columns * _PATCH)
        expected.append(seen(w, image, rows, columns))
        images.append((in_two_frames(patches_of(image, _PATCH)), (1, rows, columns)))
    model.model.rotary_emb = SectionedRotary((0, 1, 2, 0), 10_000.0, apart=False)
    return Sight(images, expected, model)
