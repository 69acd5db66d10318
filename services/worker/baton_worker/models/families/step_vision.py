"""Step3 (arXiv:2507.19427) and Step3-VL (arXiv:2601.09668): a ViT, two convolutions to fewer
states, one projection."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from baton_worker.models.families.clip import part_of
from baton_worker.models.families.common import QKV, Config, architecture
from baton_worker.models.families.vision_common import image_token, text_model, with_tower
from baton_worker.spec import (
    Attention,
    Decoder,
    Dense,
    Fused,
    Head,
    Mlp,
    Norm,
    Patches,
    Projections,
    Rope,
    Sections,
    StridedConvolution,
    TensorLayout,
    TilesFirst,
    Vision,
    VisionTower,
)

_ROOT = "vision_model"
_LAYER = f"{_ROOT}.transformer.layers.{{layer}}"
_NAMES = {
    "patches": f"{_ROOT}.embeddings.patch_embedding",
    "class_token": f"{_ROOT}.embeddings.class_embedding",
    "positions": f"{_ROOT}.embeddings.position_embedding",
    "mixer_post_norm": f"{_LAYER}.layer_norm1",
    "output": f"{_LAYER}.self_attn.out_proj",
    "ffn_post_norm": f"{_LAYER}.layer_norm2",
    "up": f"{_LAYER}.mlp.fc1",
    "down": f"{_LAYER}.mlp.fc2",
} | {part: f"{_LAYER}.self_attn.{part}" for part in QKV}
_BLOCK = f"{_ROOT}.transformer.resblocks.{{layer}}"
_PE_NAMES = {
    "patches": f"{_ROOT}.conv1",
    "class_token": f"{_ROOT}.class_embedding",
    "positions": f"{_ROOT}.positional_embedding",
    "embedding_norm": f"{_ROOT}.ln_pre",
    "norm": f"{_ROOT}.ln_post",
    "mixer_norm": f"{_BLOCK}.ln_1",
    "mixer_scale": f"{_BLOCK}.ls_1.gamma",
    "output": f"{_BLOCK}.attn.out_proj",
    "ffn_norm": f"{_BLOCK}.ln_2",
    "ffn_scale": f"{_BLOCK}.ls_2.gamma",
    "up": f"{_BLOCK}.mlp.c_fc",
    "down": f"{_BLOCK}.mlp.c_proj",
} | {part: f"{_BLOCK}.attn.{part}" for part in QKV}
_PE_RENAMES = (
    (rf"^({_ROOT}\.positional_embedding)$", r"\1.weight"),
    (rf"^({_ROOT}\.transformer\.resblocks\.\d+\.attn)\.in_proj_", r"\1.in_proj."),
)
_STEP3: dict[str, Any] = {
    "hidden_size": 1792,
    "intermediate_size": 3072,
    "output_hidden_size": 4096,
    "num_hidden_layers": 63,
    "num_attention_heads": 16,
    "image_size": 728,
    "patch_size": 14,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
}
_PE: dict[str, Any] = {
    "width": 1536,
    "layers": 47,
    "heads": 16,
    "image_size": 728,
    "patch_size": 14,
    "mlp_ratio": 8960 / 1536,
    "ls_init_value": 0.1,
    "use_cls_token": False,
    "use_rope2d": True,
    "use_abs_posemb": True,
    "use_ln_pre": True,
    "use_ln_post": False,
    "hidden_act": "quick_gelu",
}
_CLASS_COPIES = 4
"""Of the class token, with which the encoder was trained."""


@architecture("Step3VLForConditionalGeneration")
def step3_vl(c: Config) -> Decoder:
    """Layers are normed behind each half, without a rope."""
    decoder, v = text_model(c, "step3_text"), part_of(c, "vision", _STEP3)
    inner = v.output_hidden_size
    stride = getattr(c, "understand_projector_stride", 1)
    first = StridedConvolution("vit_downsampler", v.hidden_size, inner, 2, stride)
    second = StridedConvolution("vit_downsampler2", inner, 2 * inner, 3, 2, 1)
    tower = _tower(c, decoder, v, _stack(v), (first, second))
    return with_tower(decoder, tower, ())


@architecture("StepVLForConditionalGeneration")
def step_vl(c: Config) -> Decoder:
    """Meta's Perception Encoder (arXiv:2504.13181), whose convolutions are among its tensors."""
    return _with_perception_encoder(c, text_model(c, "qwen3"), 128_001, bias=True)


@architecture("Step3p7ForConditionalGeneration")
def step_3_7(c: Config) -> Decoder:
    """Step-3.7: Step3-VL's encoder beside Step-3.5."""
    seen = _renamed(c.vision_config, _SAVED_VISION)
    parts = {"text_config": _as_step_3_5(c.text_config), "vision_config": seen}
    c = SimpleNamespace(**vars(c) | parts)
    return _with_perception_encoder(c, text_model(c, "step3p5"), 151_679, bias=False)


def _as_step_3_5(text: Config) -> Config:
    """The config of a text model, whose fields transformers saves under other names than its
    makers."""
    defaults = {"use_head_wise_attn_gate": True, "use_moe_router_bias": True}
    fields: dict[str, Any] = defaults | vars(_renamed(text, _SAVED_TEXT))
    if fields.get("query_pre_attn_scalar", text.head_dim) != text.head_dim:
        raise AttributeError("query_pre_attn_scalar that is not head_dim is not supported")
    if sliding := fields.get("num_sliding_attention_heads"):
        fields["attention_other_setting"] = SimpleNamespace(num_attention_heads=sliding)
    if turned := fields.get("rope_parameters"):
        fields |= _ropes(turned, fields["layer_types"])
    return SimpleNamespace(**fields)


def _renamed(c: Config, saved: dict[str, str]) -> Config:
    fields = vars(c)
    return SimpleNamespace(**fields | {n: fields[s] for n, s in saved.items() if s in fields})


_SAVED_TEXT = {"moe_num_experts": "n_routed_experts", "moe_top_k": "num_experts_per_tok"}
_SAVED_VISION = {
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "ls_init_value": "layer_scale_init_value",
}
"""Names that transformers saves."""


def _ropes(turned: Config, kinds: list[str]) -> dict[str, Any]:
    """Bases and rotated shares by layer, and the scaling of global layers, from the parameters of
    each type of layer."""
    each = [vars(getattr(turned, kind)) for kind in kinds]
    whole = vars(getattr(turned, "full_attention", None) or SimpleNamespace())
    apart = ("rope_theta", "partial_rotary_factor")
    scaling = {name: value for name, value in whole.items() if name not in apart}
    scaled = scaling.get("rope_type", "default") != "default"
    return {
        "rope_theta": [parameters.get("rope_theta", 10_000.0) for parameters in each],
        "partial_rotary_factors": [p.get("partial_rotary_factor", 1.0) for p in each],
        "rope_scaling": SimpleNamespace(**scaling) if scaled else None,
        "yarn_only_types": ["full_attention"],
    }


def _with_perception_encoder(c: Config, decoder: Decoder, token: int, *, bias: bool) -> Decoder:
    """`token` and `bias` of the projection are the architecture's defaults."""
    v = part_of(c, "vision", _PE)
    if not v.use_rope2d:
        raise AttributeError("use_rope2d: false is not supported")
    first = StridedConvolution(f"{_ROOT}.vit_downsampler1", v.width, 2 * v.width, 3, 2, 1)
    second = StridedConvolution(f"{_ROOT}.vit_downsampler2", 2 * v.width, 4 * v.width, 3, 2, 1)
    tower = _tower(c, decoder, v, _perception_encoder(v), (first, second), token, bias=bias)
    return with_tower(decoder, tower, _PE_RENAMES)


def _tower(
    c: Config,
    decoder: Decoder,
    v: Any,
    stack: Vision,
    convolutions: tuple[StridedConvolution, StridedConvolution],
    token: int = 128_001,
    *,
    bias: bool = True,
) -> VisionTower:
    """Tiles have 9/13 of the side of the whole image: 504 of 728 pixels."""
    side, wide = v.image_size // v.patch_size, convolutions[1].outputs
    bias = getattr(c, "projector_bias", bias)
    projection = Dense("vit_large_projector", wide, decoder.hidden, bias=bias)
    return VisionTower(
        stack=stack,
        projector=(*convolutions, projection),
        image_token=image_token(c, token),
        hidden=decoder.hidden,
        drops_class_token=True,
        arrangement=TilesFirst(side, side * 9 // 13),
    )


def _stack(v: Any) -> Vision:
    heads = v.num_attention_heads
    dim = v.hidden_size // heads
    attention = Attention(
        heads, heads, dim, 1 / math.sqrt(dim), None, projections=Projections(True, True)
    )
    return Vision(
        hidden=v.hidden_size,
        vocab=0,
        layers=((attention, Mlp(v.intermediate_size, v.hidden_act, bias=True)),)
        * v.num_hidden_layers,
        norm=Norm(v.layer_norm_eps, "layer", bias=True),
        final_norm=False,
        style="post",
        head=Head(tied=True),
        patches=Patches(
            v.image_size,
            v.patch_size,
            bias=True,
            class_token=True,
            class_copies=_CLASS_COPIES,
            stored="class_row",
            positions="bicubic_antialias",
        ),
        tensors=TensorLayout(
            names=tuple(_NAMES.items()), fused=(Fused(f"{_LAYER}.self_attn.qkv_proj", QKV),)
        ),
    )


def _perception_encoder(v: Any) -> Vision:
    """Columns turn the first half of a head's channels, rows the second."""
    dim, norm = v.width // v.heads, Norm(1e-5, "layer", bias=True)
    sections = Sections((dim // 4, dim // 4), "reversed")
    rope = Rope(dim, 10_000.0, 0, "axial", interleaved=True, sections=sections)
    attention = Attention(
        v.heads, v.heads, dim, 1 / math.sqrt(dim), rope, projections=Projections(True, True)
    )
    return Vision(
        hidden=v.width,
        vocab=0,
        layers=((attention, Mlp(int(v.width * v.mlp_ratio), v.hidden_act, bias=True)),) * v.layers,
        norm=norm,
        embedding_norm=norm if v.use_ln_pre else None,
        final_norm=v.use_ln_post,
        style="pre" if v.ls_init_value is None else "scaled",
        head=Head(tied=True),
        patches=Patches(
            v.image_size,
            v.patch_size,
            class_token=v.use_cls_token,
            positions="bilinear" if v.use_abs_posemb else "none",
        ),
        tensors=TensorLayout(
            names=tuple(_PE_NAMES.items()), fused=(Fused(f"{_BLOCK}.attn.in_proj", QKV),)
        ),
    )
