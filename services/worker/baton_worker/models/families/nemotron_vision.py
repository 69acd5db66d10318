"""Nemotron Nano VL: RADIO (arXiv:2312.06709) on tiles, 2 x 2 patches merged and projected twice,
beside Llama or Nemotron-H."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from baton_worker.models.families.common import QKV, Config, architecture
from baton_worker.models.families.llama import llama
from baton_worker.models.families.mamba2 import nemotron_h
from baton_worker.models.families.vision_common import image_token, with_tower
from baton_worker.spec import (
    Activated,
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
    Step,
    TensorLayout,
    Vision,
    VisionTower,
)

_ROOT = "vision_model.radio_model"
_LAYER = f"{_ROOT}.model.blocks.{{layer}}"
_NAMES = {
    "patches": f"{_ROOT}.model.patch_generator.embedder",
    "positions": f"{_ROOT}.model.patch_generator.pos_embed",
    "registers": f"{_ROOT}.model.patch_generator.cls_token.token",
    "mixer_norm": f"{_LAYER}.norm1",
    "query": f"{_LAYER}.attn.query",
    "key": f"{_LAYER}.attn.key",
    "value": f"{_LAYER}.attn.value",
    "output": f"{_LAYER}.attn.proj",
    "ffn_norm": f"{_LAYER}.norm2",
    "up": f"{_LAYER}.mlp.fc1",
    "down": f"{_LAYER}.mlp.fc2",
}
_SIZES = {
    "vit_small_patch16_224": (384, 12, 6, 1536),
    "vit_base_patch16_224": (768, 12, 12, 3072),
    "vit_large_patch16_224": (1024, 24, 16, 4096),
    "vit_huge_patch16_224": (1280, 32, 16, 5120),
}
"""Width, layers, heads and inner width of timm's models, which configs name in `args.model`."""
_FIELDS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
_RENAMES = ((r"^language_model\.", ""),)
_UNUSED = (f"{_ROOT}.input_conditioner.", f"{_ROOT}.summary_idxs")
"""Pixels come normed."""
_VIDEO = f"{_ROOT}.model.patch_generator.video_embedder."


@architecture("Llama_Nemotron_Nano_VL")
def llama_nemotron_nano_vl(c: Config) -> Decoder:
    """Llama 3.1 Nemotron Nano VL."""
    decoder, stack = llama(_text(c)), radio(c)
    width, inner = stack.hidden * _merge(c) ** 2, c.projector_hidden_size
    steps: tuple[Step, ...] = (
        Normed(Norm(1e-5, "layer", bias=True), width, "mlp1.0"),
        Dense("mlp1.1", width, inner, activation="gelu"),
        Dense("mlp1.3", inner, decoder.hidden),
    )
    return _with_vision(c, decoder, stack, steps)


@architecture("NemotronH_Nano_VL_V2")
def nemotron_nano_vl_v2(c: Config) -> Decoder:
    """Nemotron Nano V2 VL (arXiv:2511.03929). Its videos, whose tokens may be pruned, are
    refused."""
    decoder, stack = nemotron_h(_text(c)), radio(c)
    width, inner = stack.hidden * _merge(c) ** 2, c.projector_hidden_size
    steps: tuple[Step, ...] = (
        Normed(Norm(1e-5), width, "mlp1.0"),
        Dense("mlp1.1", width, inner, bias=False),
        Activated("relu2"),
        Dense("mlp1.3", inner, decoder.hidden, bias=False),
    )
    return _with_vision(c, decoder, stack, steps)


def _with_vision(c: Config, decoder: Decoder, stack: Vision, steps: tuple[Step, ...]) -> Decoder:
    if getattr(c, "ps_version", "v2") != "v2":
        raise AttributeError(f"ps_version {c.ps_version} is not v2")
    token = getattr(c, "img_context_token_id", None)
    tower = VisionTower(
        stack=stack,
        projector=(Merge(_merge(c)), *steps),
        image_token=image_token(c, 0, "<image>") if token is None else token,
        hidden=decoder.hidden,
        drops_class_token=True,
    )
    return with_tower(decoder, tower, _RENAMES, (*_UNUSED, _VIDEO))


def _text(c: Config) -> Config:
    """The config of the language model."""
    part = getattr(c, "llm_config", None) or c.text_config
    return SimpleNamespace(**{"served_length": getattr(c, "served_length", None)} | vars(part))


def _merge(c: Config) -> int:
    return round(1 / getattr(c, "downsample_ratio", 0.5))


def radio(c: Config) -> Vision:
    """The stack of a config whose `vision_config` names a model of timm, or its sizes."""
    v, args = c.vision_config, c.vision_config.args
    sizes = {name: getattr(v, name) for name in _FIELDS if hasattr(v, name)}
    if sizes.keys() != set(_FIELDS):
        if args.model not in _SIZES:
            raise AttributeError(f"args.model {args.model} is not one of {', '.join(_SIZES)}")
        sizes = dict(zip(_FIELDS, _SIZES[args.model], strict=True)) | sizes
    width, heads = sizes["hidden_size"], sizes["num_attention_heads"]
    patch, dim = getattr(v, "patch_size", c.patch_size), width // heads
    attention = Attention(
        heads,
        heads,
        dim,
        1 / math.sqrt(dim),
        None,
        projections=Projections(bias=True, output_bias=True),
    )
    ffn = Mlp(sizes["intermediate_size"], "gelu", bias=True)
    return Vision(
        hidden=width,
        vocab=0,
        layers=((attention, ffn),) * sizes["num_hidden_layers"],
        norm=Norm(1e-6, "layer", bias=True),
        final_norm=False,
        head=Head(tied=True),
        patches=Patches(
            c.force_image_size,
            patch,
            positions="square",
            stored="batched",
            flat=True,
            registers=_num_registers(args),
            table=round(getattr(args, "cpe_max_size", 2048) / patch),
        ),
        tensors=TensorLayout(
            names=tuple(_NAMES.items()), fused=(Fused(f"{_LAYER}.attn.qkv", QKV),)
        ),
    )


def _num_registers(args: Any) -> int:
    """One vector for each teacher, and as many more as make a multiple of `register_multiple`."""
    names = {teacher.name for teacher in args.teachers}
    tokens = len(names) if getattr(args, "cls_token_per_teacher", True) else 1
    multiple = getattr(args, "register_multiple", None)
    return tokens + (multiple - tokens % multiple if multiple else 0)
