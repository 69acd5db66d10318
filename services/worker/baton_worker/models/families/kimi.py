"""Kimi-VL (arXiv:2504.07491) and Kimi K2.5: MoonViT beside DeepSeek-V3's language model."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from baton_worker.models.families.clip import part_of
from baton_worker.models.families.common import QKV, Config, architecture
from baton_worker.models.families.vision_common import RENAMES, image_token, text_model, with_tower
from baton_worker.spec import (
    Attention,
    Decoder,
    Dense,
    Fused,
    Head,
    Merge,
    Mlp,
    Norm,
    Normed,
    Patches,
    Projections,
    Rope,
    Sections,
    Step,
    TensorLayout,
    Vision,
    VisionTower,
)

_DEFAULTS: dict[str, Any] = {
    "patch_size": 14,
    "init_pos_emb_height": 64,
    "num_attention_heads": 16,
    "num_hidden_layers": 27,
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "hidden_act": "gelu_pytorch_tanh",
    "merge_kernel_size": [2, 2],
    "init_pos_emb_time": 4,
}
_LAYER = "vision_tower.encoder.blocks.{layer}"
_NAMES = {
    "patches": "vision_tower.patch_embed.proj",
    "positions": "vision_tower.patch_embed.pos_emb.weight",
    "mixer_norm": f"{_LAYER}.norm0",
    "query": f"{_LAYER}.query",
    "key": f"{_LAYER}.key",
    "value": f"{_LAYER}.value",
    "output": f"{_LAYER}.wo",
    "ffn_norm": f"{_LAYER}.norm1",
    "up": f"{_LAYER}.mlp.fc0",
    "down": f"{_LAYER}.mlp.fc1",
    "norm": "vision_tower.encoder.final_layernorm",
}


@architecture("KimiVLForConditionalGeneration")
def kimi_vl(c: Config) -> Decoder:
    """The form of Kimi-VL."""
    prefix = "multi_modal_projector"
    return _kimi(c, prefix, (f"{prefix}.linear_1", f"{prefix}.linear_2"))


@architecture("KimiK25ForConditionalGeneration", "Kimi_K25ForConditionalGeneration")
def kimi_k25(c: Config) -> Decoder:
    """Kimi K2.5 (arXiv:2602.02276): its encoder, MoonViT-3D, takes videos a few frames at once."""
    decoder = _kimi(c, "mm_projector", ("mm_projector.proj.0", "mm_projector.proj.2"))
    assert isinstance(decoder.tower, VisionTower)
    return replace(
        decoder, tower=replace(decoder.tower, pooled_frames=_vision(c).init_pos_emb_time)
    )


def _kimi(c: Config, prefix: str, names: tuple[str, str]) -> Decoder:
    token = getattr(c, "media_placeholder_token_id", None) or image_token(c, 163_605)
    decoder, v = text_model(c, "deepseek_v3"), _vision(c)
    size = v.merge_kernel_size[0]
    inner, norm = v.hidden_size * size**2, Norm(1e-5, "layer", bias=True)
    steps: tuple[Step, ...] = (
        Normed(norm, v.hidden_size, f"{prefix}.pre_norm"),
        Merge(size),
        Dense(names[0], inner, inner, activation="gelu"),
        Dense(names[1], inner, decoder.hidden),
    )
    tower = VisionTower(stack=_stack(v), projector=steps, image_token=token, hidden=decoder.hidden)
    return with_tower(decoder, tower, RENAMES)


def _vision(c: Config) -> SimpleNamespace:
    """The vision config under one spelling."""
    vision = part_of(c, "vision", {})
    names = ("pos_emb_height", "pos_emb_time")
    sizes = {f"init_{name}": getattr(vision, name) for name in names if hasattr(vision, name)}
    return part_of(c, "vision", _DEFAULTS | sizes)


def _stack(v: Any) -> Vision:
    heads = v.num_attention_heads
    dim = v.hidden_size // heads
    sections = Sections((dim // 4, dim // 4), "crossed")
    rope = Rope(dim, 10_000.0, 0, "axial_paired", interleaved=True, sections=sections)
    projections = Projections(bias=True, output_bias=True)
    attention = Attention(heads, heads, dim, 1 / math.sqrt(dim), rope, projections=projections)
    ffn = Mlp(v.intermediate_size, v.hidden_act, bias=True)
    patches = Patches(
        v.init_pos_emb_height * v.patch_size,
        v.patch_size,
        bias=True,
        positions="bicubic",
        stored="grid",
    )
    return Vision(
        hidden=v.hidden_size,
        vocab=0,
        layers=((attention, ffn),) * v.num_hidden_layers,
        norm=Norm(1e-5, "layer", bias=True),
        head=Head(tied=True),
        patches=patches,
        tensors=TensorLayout(names=tuple(_NAMES.items()), fused=(Fused(f"{_LAYER}.wqkv", QKV),)),
    )
