"""InternVL (arXiv:2404.16821): InternViT, 2 x 2 patches merged, two projections."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from baton_worker.models.families.clip import part_of
from baton_worker.models.families.common import QKV, Config, architecture
from baton_worker.models.families.vision_common import (
    RENAMES,
    image_token,
    text_model,
    two_layers,
    with_tower,
)
from baton_worker.spec import (
    Attention,
    Decoder,
    Fused,
    Head,
    Merge,
    Mlp,
    Norm,
    Normed,
    Patches,
    Projections,
    QkNorm,
    TensorLayout,
    Vision,
    VisionTower,
)

_DEFAULTS: dict[str, Any] = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "hidden_act": "gelu",
    "norm_type": "layer_norm",
    "layer_norm_eps": 1e-6,
    "image_size": 448,
    "patch_size": 14,
}
_TOWER = "vision_tower"
_NAMES = {
    "patches": f"{_TOWER}.embeddings.patch_embeddings.projection",
    "class_token": f"{_TOWER}.embeddings.cls_token",
    "positions": f"{_TOWER}.embeddings.position_embeddings",
    "norm": f"{_TOWER}.layernorm",
}
_LAYER = f"{_TOWER}.encoder.layer.{{layer}}"
_IN_LAYER = {
    "mixer_norm": "layernorm_before",
    "query": "attention.q_proj",
    "key": "attention.k_proj",
    "value": "attention.v_proj",
    "query_norm": "attention.q_norm",
    "key_norm": "attention.k_norm",
    "output": "attention.projection_layer",
    "mixer_scale": "lambda_1",
    "ffn_norm": "layernorm_after",
    "up": "mlp.fc1",
    "down": "mlp.fc2",
    "ffn_scale": "lambda_2",
}
_CHAT = (
    (r"^vision_model\.embeddings\.class_embedding$", f"{_TOWER}.embeddings.cls_token"),
    (r"^vision_model\.embeddings\.position_embedding$", f"{_TOWER}.embeddings.position_embeddings"),
    (
        r"^vision_model\.embeddings\.patch_embedding\.",
        f"{_TOWER}.embeddings.patch_embeddings.projection.",
    ),
    (r"^vision_model\.encoder\.layers\.(\d+)\.attn\.", rf"{_TOWER}.encoder.layer.\1.attention."),
    (
        r"^vision_model\.encoder\.layers\.(\d+)\.norm1\.",
        rf"{_TOWER}.encoder.layer.\1.layernorm_before.",
    ),
    (
        r"^vision_model\.encoder\.layers\.(\d+)\.norm2\.",
        rf"{_TOWER}.encoder.layer.\1.layernorm_after.",
    ),
    (r"^vision_model\.encoder\.layers\.(\d+)\.ls([12])$", rf"{_TOWER}.encoder.layer.\1.lambda_\2"),
    (r"^vision_model\.encoder\.layers\.(\d+)\.", rf"{_TOWER}.encoder.layer.\1."),
    (rf"^({_TOWER}\.encoder\.layer\.\d+\.attention)\.proj\.", r"\1.projection_layer."),
    (r"^mlp1\.0\.", "multi_modal_projector.layer_norm."),
    (r"^mlp1\.1\.", "multi_modal_projector.linear_1."),
    (r"^mlp1\.3\.", "multi_modal_projector.linear_2."),
    (r"^language_model\.(model|lm_head)\.", r"\1."),
)
"""Names of OpenGVLab's own checkpoints to those of transformers."""
_QIANFAN = (rf"^{_TOWER}\.layers\.", f"{_TOWER}.encoder.layer.")


@architecture("InternVLForConditionalGeneration", "InternS1ForConditionalGeneration")
def internvl(c: Config) -> Decoder:
    """The form of transformers."""
    decoder = text_model(c, "qwen2", tied=True)
    return with_tower(decoder, _tower(c, decoder.hidden, image_token(c, 151_667)))


@architecture("QianfanOCRForConditionalGeneration")
def qianfan_ocr(c: Config) -> Decoder:
    """InternVL's tower beside Qwen3, in the form of transformers or of Baidu."""
    decoder = text_model(c, "qwen3")
    c = SimpleNamespace(**vars(c) | {"vision_config": _biased(c.vision_config)})
    tower = _tower(c, decoder.hidden, image_token(c, 151_671, "<IMG_CONTEXT>"))
    return with_tower(decoder, tower, (*RENAMES, _QIANFAN, *_CHAT))


def _biased(vision: Config) -> Config:
    """The queries, keys and values of the tower have biases unless the config says otherwise."""
    return SimpleNamespace(**{"attention_bias": True} | vars(vision))


@architecture("InternVLChatModel", "SkyworkR1VChatModel", "H2OVLChatModel")
def internvl_chat(c: Config) -> Decoder:
    """The form of OpenGVLab, of Skywork R1V (arXiv:2504.05599) and of H2OVL-Mississippi
    (arXiv:2410.13611). The image token is the one of the tokenizer, or the seventh from the end of
    the vocabulary."""
    text = getattr(c, "llm_config", None) or c.text_config
    c = SimpleNamespace(**vars(c) | {"text_config": text, "projector_hidden_act": "gelu"})
    decoder = text_model(c, "qwen2")
    layer = getattr(c, "select_layer", -1)
    if layer != -1 or getattr(c, "ps_version", "v2") != "v2":
        raise AttributeError("select_layer other than -1 and ps_version other than v2")
    token = image_token(c, decoder.vocab - 7, "<IMG_CONTEXT>")
    tower = _tower(c, decoder.hidden, token)
    return with_tower(decoder, tower, _CHAT)


def _tower(c: Config, hidden: int, token: int) -> VisionTower:
    stack, size = _stack(c), round(1 / getattr(c, "downsample_ratio", 0.5))
    inner = stack.hidden * size**2
    norm = Normed(Norm(1e-5, "layer", bias=True), inner, "multi_modal_projector.layer_norm")
    return VisionTower(
        stack=stack,
        projector=(Merge(size), norm, *two_layers(c, inner, hidden)),
        image_token=token,
        hidden=hidden,
        drops_class_token=True,
    )


def _stack(c: Config) -> Vision:
    """InternViT: scales of each half of a layer are learned."""
    v = part_of(c, "vision", _DEFAULTS)
    dim = v.hidden_size // v.num_attention_heads
    bias = getattr(v, "attention_bias", getattr(v, "qkv_bias", False))
    normed = getattr(v, "use_qk_norm", getattr(v, "qk_normalization", False))
    attention = Attention(
        v.num_attention_heads,
        v.num_attention_heads,
        dim,
        1 / math.sqrt(dim),
        None,
        projections=Projections(bias=bias, output_bias=True),
        qk_norm=QkNorm(Norm(1e-6), "full") if normed else None,
    )
    names = _NAMES | {role: f"{_LAYER}.{name}" for role, name in _IN_LAYER.items()}
    norm = Norm(v.layer_norm_eps)
    if v.norm_type == "layer_norm":
        norm = replace(norm, kind="layer", bias=True)
    return Vision(
        hidden=v.hidden_size,
        vocab=0,
        layers=((attention, Mlp(v.intermediate_size, v.hidden_act, bias=True)),)
        * v.num_hidden_layers,
        norm=norm,
        final_norm=not getattr(v, "use_mean_pooling", True),
        style="scaled",
        head=Head(tied=True),
        patches=Patches(
            _side(v.image_size), _side(v.patch_size), bias=True, class_token=True, stored="batched"
        ),
        tensors=TensorLayout(
            names=tuple(names.items()), fused=(Fused(f"{_LAYER}.attention.qkv", QKV),)
        ),
    )


def _side(size: Any) -> int:
    """One number of pixels, or two equal ones."""
    sides = set(size) if isinstance(size, list | tuple) else {size}
    if len(sides) != 1:
        raise AttributeError(f"image_size and patch_size must be squares, not {size}")
    return int(sides.pop())
