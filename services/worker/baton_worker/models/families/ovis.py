"""Ovis 2 (arXiv:2405.20797) and 2.5: the states of an encoder choose vectors of a vocabulary."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from baton_worker.models.families.clip import part_of, siglip_vision
from baton_worker.models.families.common import QKV, Config, architecture, spelled
from baton_worker.models.families.vision_common import RENAMES, image_token, text_model, with_tower
from baton_worker.spec import (
    Attention,
    Codebook,
    Decoder,
    Dense,
    Ends,
    Fused,
    Glu,
    Head,
    Marks,
    Merge,
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
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 24,
    "num_attention_heads": 8,
    "image_size": 224,
    "patch_size": 14,
    "rms_norm_eps": 1e-5,
    "qkv_bias": False,
    "mlp_bias": False,
    "hidden_act": "silu",
    "vocab_size": 16_384,
    "hidden_stride": 1,
    "num_visual_indicator_tokens": 5,
    "tokenize_function": "softmax",
}
_TOWER = "vision_tower.transformer"
_LAYER = f"{_TOWER}.encoder.layers.{{layer}}"
_NAMES = {
    "patches": f"{_TOWER}.embeddings.patch_embedding",
    "patch_norm": f"{_TOWER}.embeddings.rms_norm",
    "positions": f"{_TOWER}.embeddings.position_embedding",
    "norm": f"{_TOWER}.rms_norm",
    "mixer_norm": f"{_LAYER}.rms_norm1",
    "query": f"{_LAYER}.attention.q_proj",
    "key": f"{_LAYER}.attention.k_proj",
    "value": f"{_LAYER}.attention.v_proj",
    "output": f"{_LAYER}.attention.out_proj",
    "ffn_norm": f"{_LAYER}.rms_norm2",
    "gate": f"{_LAYER}.ffn.gate_proj",
    "up": f"{_LAYER}.ffn.up_proj",
    "down": f"{_LAYER}.ffn.down_proj",
}
_TABLE = "visual_embeddings_table"
_MARKS = 5
_TOKENIZER = "visual_tokenizer"
_BACKBONE = f"{_TOKENIZER}.backbone"
_BLOCK = f"{_BACKBONE}.trunk.blocks.{{layer}}"
_PUBLISHED = {
    "patches": f"{_BACKBONE}.preprocessor.patchifier.proj",
    "patch_norm": f"{_BACKBONE}.preprocessor.patchifier.norm",
    "positions": f"{_BACKBONE}.preprocessor.pos_embed",
    "mixer_norm": f"{_BLOCK}.norm_1",
    "query": f"{_BLOCK}.attn.query",
    "key": f"{_BLOCK}.attn.key",
    "value": f"{_BLOCK}.attn.value",
    "output": f"{_BLOCK}.attn.proj",
    "ffn_norm": f"{_BLOCK}.norm_2",
    "gate": f"{_BLOCK}.mlp.fc1",
    "up": f"{_BLOCK}.mlp.fc3",
    "down": f"{_BLOCK}.mlp.fc2",
}
_SIGLIP = "visual_tokenizer.vit.vision_model"
_NAVIT: dict[str, Any] = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "image_size": 512,
    "patch_size": 16,
    "num_patches": -1,
    "hidden_stride": 2,
    "window_size": 112,
    "fullatt_block_indexes": None,
    "preserve_original_pe": True,
    "use_rope": True,
}
_RESERVED = 4
"""Vectors that are ends of images and of videos."""


@architecture("Ovis2ForConditionalGeneration")
def ovis2(c: Config) -> Decoder:
    """The last vectors of the vocabulary mark the whole image, its tiles, columns and rows."""
    decoder, v = text_model(c, "qwen2", tied=True), part_of(c, "vision", _DEFAULTS)
    if v.tokenize_function != "softmax":
        raise AttributeError(f"tokenize_function {v.tokenize_function} is not softmax")
    marks, inner = v.num_visual_indicator_tokens, v.hidden_size * v.hidden_stride**2
    used = v.vocab_size - marks
    steps: tuple[Step, ...] = (
        Merge(v.hidden_stride),
        Dense("vision_tower.head_linear", inner, used, bias=False),
        Normed(Norm(1e-5, "layer", bias=True), used, "vision_tower.head_norm"),
        Codebook(_TABLE, v.vocab_size, decoder.hidden, reserved=marks),
    )
    tower = VisionTower(
        stack=_stack(v),
        projector=steps,
        image_token=image_token(c, 151_665),
        hidden=decoder.hidden,
        arrangement=Marks(),
    )
    return with_tower(decoder, tower, (*RENAMES, (rf"^model\.{_TABLE}", _TABLE)))


@architecture("Ovis")
def ovis(c: Config) -> Decoder:
    """Ovis 2 as its makers save it: the states behind the last layer are not normed, and the marks
    lie the other way round."""
    tokenizer = c.visual_tokenizer_config
    backbone = SimpleNamespace(**vars(c) | {"vision_config": tokenizer.backbone_config})
    if (kind := tokenizer.backbone_config.model_type) != "aimv2":
        raise AttributeError(f"backbone_config.model_type {kind} is not aimv2")
    if getattr(tokenizer, "drop_cls_token", False) or tokenizer.tokenize_function != "softmax":
        raise AttributeError("drop_cls_token, or a tokenize_function that is not softmax")
    decoder = text_model(spelled(c, text_config="llm_config"), "qwen2")
    v, size = part_of(backbone, "vision", _DEFAULTS), tokenizer.hidden_stride
    if (v.image_size // v.patch_size) % size:
        raise AttributeError(f"hidden_stride {size} does not divide the patches of a row")
    used = tokenizer.vocab_size - _MARKS
    steps: tuple[Step, ...] = (
        Merge(size),
        Dense(f"{_TOKENIZER}.head.0", v.hidden_size * size**2, used, bias=False),
        Normed(Norm(1e-5, "layer", bias=True), used, f"{_TOKENIZER}.head.1"),
        Codebook("vte", tokenizer.vocab_size, decoder.hidden, reserved=_MARKS),
    )
    tower = VisionTower(
        stack=_published(v),
        projector=steps,
        image_token=image_token(c, 151_655, "<|image_pad|>"),
        hidden=decoder.hidden,
        arrangement=Marks(backwards=True),
    )
    unused = (f"{_BACKBONE}.trunk.post_trunk_norm.",)
    return with_tower(decoder, tower, ((r"^llm\.", ""),), unused)


def _published(v: Any) -> Vision:
    """AIMv2 (arXiv:2411.14402) under the names of its makers."""
    bias = getattr(v, "use_bias", False)
    plain = _stack(SimpleNamespace(**vars(v) | {"mlp_bias": bias, "hidden_act": "silu"}))
    attention, ffn = plain.layers[0]
    assert isinstance(attention, Attention)
    projections = Projections(bias=v.qkv_bias, output_bias=bias)
    layer = replace(attention, projections=projections), ffn
    fused = (Fused(f"{_BLOCK}.attn.qkv", QKV),)
    return replace(
        plain,
        layers=(layer,) * len(plain.layers),
        final_norm=False,
        patches=replace(plain.patches, stored="batched"),
        tensors=TensorLayout(names=tuple(_PUBLISHED.items()), fused=fused),
    )


@architecture("Ovis2_5")
def ovis2_5(c: Config) -> Decoder:
    """SigLIP 2 for images of any size (arXiv:2508.11737); two vectors of the vocabulary are the
    ends of an image."""
    c = spelled(c, text_config="llm_config", vision_config="vit_config")
    decoder, v = text_model(c, "qwen3"), part_of(c, "vision", _NAVIT)
    size = v.hidden_stride
    used = c.visual_vocab_size - _RESERVED
    steps: tuple[Step, ...] = (
        Merge(size),
        Dense("visual_tokenizer.head.0", v.hidden_size * size**2, used, bias=False),
        Normed(Norm(1e-5, "layer", bias=True), used, "visual_tokenizer.head.1"),
        Codebook("vte", c.visual_vocab_size, decoder.hidden, reserved=_RESERVED),
    )
    full = v.fullatt_block_indexes
    tower = VisionTower(
        stack=_navit(c, v),
        projector=steps,
        image_token=image_token(c, 151_655, "<|image_pad|>"),
        hidden=decoder.hidden,
        window=v.window_size // v.patch_size if full else 0,
        full_layers=tuple(map(int, full.split("|"))) if full else (),
        arrangement=Ends(),
    )
    return with_tower(decoder, tower, ((r"^llm\.", ""),), (f"{_SIGLIP}.head.",))


def _navit(c: Config, v: Any) -> Vision:
    """Rows and columns turn queries and keys, beside resized positions."""
    stack = siglip_vision(c, _SIGLIP, _NAVIT)
    attention, ffn = stack.layers[0]
    assert isinstance(attention, Attention)
    dim, flat = attention.head_dim, v.num_patches > 0
    rope = Rope(dim, 10_000.0, 0, "axial", sections=Sections((dim // 4, dim // 4)))
    side = math.isqrt(v.num_patches) if flat else v.image_size // v.patch_size
    layer = replace(attention, rope=rope if v.use_rope else None), ffn
    kind = "bicubic" if v.preserve_original_pe else "none"
    patches = Patches(side * v.patch_size, v.patch_size, bias=True, positions=kind, flat=flat)
    return replace(stack, layers=(layer,) * len(stack.layers), patches=patches)


def _stack(v: Any) -> Vision:
    heads, norm = v.num_attention_heads, Norm(v.rms_norm_eps)
    dim = v.hidden_size // heads
    projections = Projections(bias=v.qkv_bias, output_bias=v.qkv_bias)
    attention = Attention(heads, heads, dim, 1 / math.sqrt(dim), None, projections=projections)
    ffn = Glu(v.intermediate_size, v.hidden_act, v.mlp_bias)
    return Vision(
        hidden=v.hidden_size,
        vocab=0,
        layers=((attention, ffn),) * v.num_hidden_layers,
        norm=norm,
        head=Head(tied=True),
        patches=Patches(v.image_size, v.patch_size, bias=True, norm=norm),
        tensors=TensorLayout(names=tuple(_NAMES.items())),
    )
