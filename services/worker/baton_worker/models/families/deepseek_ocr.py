"""DeepSeek-OCR (arXiv:2510.18234), DeepSeek-OCR 2 (arXiv:2601.20552) and GOT-OCR 2.0
(arXiv:2409.01704): SAM's encoder, behind it CLIP's layers, queries that run through those of Qwen2
or nothing."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from baton_worker.models.families.common import QKV, Config, architecture
from baton_worker.models.families.deepseek_vl import text
from baton_worker.models.families.vision_common import RENAMES as TEXT_RENAMES
from baton_worker.models.families.vision_common import image_token, text_model, with_tower
from baton_worker.spec import (
    Attention,
    Decoder,
    Dense,
    Fused,
    Glu,
    HalfCausalAttention,
    Head,
    Mlp,
    Norm,
    Patches,
    Projections,
    Rope,
    SamEncoder,
    TensorLayout,
    ViewTiles,
    Vision,
    VisionTower,
)

_SAM: dict[str, Any] = {
    "width": 768,
    "layers": 12,
    "heads": 12,
    "global_attn_indexes": (2, 5, 8, 11),
    "image_size": 1024,
    "patch_size": 16,
    "window_size": 14,
    "output_channels": 256,
}
_NEW = {
    "hidden_size": "width",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
}
"""Names of transformers to those of DeepSeek's own configs."""
_CLIP = {"width": 1024, "layers": 24, "heads": 16, "image_size": 224, "patch_size": 14}
_QWEN2: dict[str, Any] = {
    "hidden_size": 896,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "intermediate_size": 4864,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
}
_CLIP_LAYER = "vision_model.transformer.layers.{layer}"
_CLIP_NAMES = {
    "class_token": "vision_model.embeddings.class_embedding",
    "positions": "vision_model.embeddings.position_embedding",
    "embedding_norm": "vision_model.pre_layrnorm",
    "mixer_norm": f"{_CLIP_LAYER}.layer_norm1",
    "query": f"{_CLIP_LAYER}.self_attn.query",
    "key": f"{_CLIP_LAYER}.self_attn.key",
    "value": f"{_CLIP_LAYER}.self_attn.value",
    "output": f"{_CLIP_LAYER}.self_attn.out_proj",
    "ffn_norm": f"{_CLIP_LAYER}.layer_norm2",
    "up": f"{_CLIP_LAYER}.mlp.fc1",
    "down": f"{_CLIP_LAYER}.mlp.fc2",
}
_QWEN2_LAYER = "qwen2_model.model.model.layers.{layer}"
_QWEN2_NAMES = {
    "norm": "qwen2_model.model.model.norm",
    "mixer_norm": f"{_QWEN2_LAYER}.input_layernorm",
    "query": f"{_QWEN2_LAYER}.self_attn.q_proj",
    "key": f"{_QWEN2_LAYER}.self_attn.k_proj",
    "value": f"{_QWEN2_LAYER}.self_attn.v_proj",
    "output": f"{_QWEN2_LAYER}.self_attn.o_proj",
    "ffn_norm": f"{_QWEN2_LAYER}.post_attention_layernorm",
    "gate": f"{_QWEN2_LAYER}.mlp.gate_proj",
    "up": f"{_QWEN2_LAYER}.mlp.up_proj",
    "down": f"{_QWEN2_LAYER}.mlp.down_proj",
}
_SAM_LAYER = r"^sam_model\.layers\.(\d+)\."
RENAMES = (
    (r"^model\.(sam_model|vision_model|qwen2_model|projector|image_newline|view_sep)", r"\1"),
    (r"^model\.vision_tower\.sam_encoder\.", "sam_model."),
    (rf"{_SAM_LAYER}layer_norm([12])\.", r"sam_model.blocks.\1.norm\2."),
    (_SAM_LAYER, r"sam_model.blocks.\1."),
    (r"^sam_model\.patch_embed\.projection\.", "sam_model.patch_embed.proj."),
    (r"^sam_model\.neck\.conv1\.", "sam_model.neck.0."),
    (r"^sam_model\.neck\.layer_norm1\.", "sam_model.neck.1."),
    (r"^sam_model\.neck\.conv2\.", "sam_model.neck.2."),
    (r"^sam_model\.neck\.layer_norm2\.", "sam_model.neck.3."),
    (r"^sam_model\.proj\.conv1\.", "sam_model.net_2."),
    (r"^sam_model\.proj\.conv2\.", "sam_model.net_3."),
    (r"^model\.vision_tower\.vision_encoder\.", "qwen2_model.model.model."),
    (r"^model\.vision_tower\.query_(\d+)_resolution\.", r"qwen2_model.query_\1."),
    (r"^model\.multi_modal_projector\.", "projector.layers."),
    (r"^(model\.)?view_separator$", "view_seperator"),
    (r"^model\.language_model\.", "model."),
)
"""Names of transformers to DeepSeek's own, which begin with "model."."""
_GOT_PROJECTOR = "multi_modal_projector.multimodal_projector"
_GOT = (
    (r"^(model\.)?multi_modal_projector\.conv_upsampler1\.", "sam_model.net_2."),
    (r"^(model\.)?multi_modal_projector\.conv_upsampler2\.", "sam_model.net_3."),
    (r"^(model\.)?vision_tower\.", "sam_model."),
    (r"^model\.multi_modal_projector\.", "multi_modal_projector."),
)
"""Names of GOT-OCR 2.0 to those of SAM here."""
_POSITIONED = ("use_abs_pos", "use_rel_pos")


@architecture("DeepseekOCRForCausalLM")
def deepseek_ocr(c: Config) -> Decoder:
    """DeepEncoder: the states of SAM are the patches of CLIP's layers, and stand beside theirs."""
    decoder, sam = _text(c), _sam(c, (512, 1024))
    v = SimpleNamespace(**_CLIP | _width(c, "clip-l-14-224"))
    if v.width != sam.outputs[1]:
        raise AttributeError(
            f"the states of sam_vit_b have {sam.outputs[1]} channels, not {v.width}"
        )
    tower = VisionTower(
        stack=_clip(v, sam),
        projector=(Dense("projector.layers", v.width + sam.outputs[1], decoder.hidden),),
        image_token=image_token(c, 128_815, "<image>"),
        hidden=decoder.hidden,
        drops_class_token=True,
        front=sam,
        joined=True,
        arrangement=ViewTiles(*_views(sam, 640), "view_seperator", "image_newline"),
    )
    unused = ("vision_model.embeddings.patch_embedding.", "vision_model.embeddings.position_ids")
    return with_tower(decoder, tower, RENAMES, unused)


@architecture("DeepseekOCR2ForCausalLM", "DeepseekOcr2ForConditionalGeneration")
def deepseek_ocr2(c: Config) -> Decoder:
    """DeepEncoder 2: the states of queries behind those of SAM, one for each."""
    decoder, sam = _text(c), _sam(c, (512, 896))
    encoder_config = getattr(c.vision_config, "encoder_config", None) or SimpleNamespace()
    v = SimpleNamespace(**_QWEN2 | vars(encoder_config))
    views = _views(sam, 768)
    counts = [(side // 4) ** 2 for side in views]
    tower = VisionTower(
        stack=_qwen2(v, sam),
        projector=(Dense("projector.layers", v.hidden_size, decoder.hidden),),
        image_token=image_token(c, 128_815, "<image>"),
        hidden=decoder.hidden,
        front=sam,
        queries=(("qwen2_model.query_1024", counts[0]), ("qwen2_model.query_768", counts[1])),
        arrangement=ViewTiles(*views, "view_seperator"),
    )
    return with_tower(decoder, tower, RENAMES)


@architecture("GotOcr2ForConditionalGeneration")
def got_ocr2(c: Config) -> Decoder:
    """The states of SAM, one projection, and Qwen2."""
    if not all(getattr(c.vision_config, name, True) for name in _POSITIONED):
        raise AttributeError(f"vision_config without {' and '.join(_POSITIONED)}")
    decoder = text_model(c, "qwen2", tied=True)
    neck = getattr(c.vision_config, "output_channels", 256)
    vision = SimpleNamespace(sam_config=c.vision_config)
    sam = _sam(SimpleNamespace(vision_config=vision), (2 * neck, decoder.hidden))
    tower = VisionTower(
        stack=_no_layers(sam),
        projector=(Dense(_GOT_PROJECTOR, decoder.hidden, decoder.hidden),),
        image_token=image_token(c, 151_859),
        hidden=decoder.hidden,
        front=sam,
    )
    return with_tower(decoder, tower, (*_GOT, *RENAMES, *TEXT_RENAMES))


def _no_layers(sam: SamEncoder) -> Vision:
    """What keeps the states of `sam` as they are."""
    return Vision(
        hidden=sam.outputs[1],
        vocab=0,
        layers=(),
        norm=sam.norm,
        final_norm=False,
        head=Head(tied=True),
        patches=Patches(sam.patches.image, sam.patches.size, positions="none", given=True),
    )


def _text(c: Config) -> Decoder:
    """DeepSeek-MoE with plain heads."""
    part = getattr(c, "language_config", None) or c.text_config
    kinds = getattr(part, "mlp_layer_types", None)
    fields = {"use_mla": False}
    if kinds is not None:
        dense = kinds.count("dense")
        if kinds[:dense].count("dense") < dense:
            raise AttributeError("mlp_layer_types has dense layers behind sparse ones")
        fields["first_k_dense_replace"] = dense
    if getattr(part, "topk_method", "greedy") != "greedy":
        raise AttributeError(f"topk_method {part.topk_method} is not greedy")
    whole = SimpleNamespace(**vars(part) | fields)
    served = getattr(c, "served_length", None)
    return text(SimpleNamespace(language_config=whole, served_length=served))


def _width(c: Config, name: str) -> dict[str, Any]:
    """The part of `vision_config.width` for one encoder."""
    every = vars(getattr(c.vision_config, "width", None) or SimpleNamespace())
    return vars(every[name]) if name in every else {}


def _views(sam: SamEncoder, tile: int) -> tuple[int, int]:
    """Patches along the sides of the whole image and of a tile, which has `tile` pixels beside an
    image of 1024."""
    side = sam.patches.image // sam.patches.size
    return side, side * tile // 1024


def _sam(c: Config, outputs: tuple[int, int]) -> SamEncoder:
    sam_config = vars(getattr(c.vision_config, "sam_config", None) or SimpleNamespace())
    fields = _width(c, "sam_vit_b") | {_NEW.get(name, name): at for name, at in sam_config.items()}
    v = SimpleNamespace(**_SAM | fields)
    last = tuple(getattr(v, "downsample_channels", None) or outputs)
    return SamEncoder(
        prefix="sam_model",
        patches=Patches(
            v.image_size,
            v.patch_size,
            bias=True,
            positions="bicubic_antialias",
            stored="batched_grid",
        ),
        hidden=v.width,
        num_layers=v.layers,
        num_heads=v.heads,
        intermediate=getattr(v, "mlp_dim", None) or int(v.width * getattr(v, "mlp_ratio", 4)),
        window=v.window_size,
        full_layers=tuple(v.global_attn_indexes),
        norm=Norm(getattr(v, "layer_norm_eps", 1e-6), "layer", bias=True),
        neck=v.output_channels,
        outputs=(last[0], last[1]),
    )


def _clip(v: Any, sam: SamEncoder) -> Vision:
    """CLIP's layers, whose states are not normed."""
    dim, norm = v.width // v.heads, Norm(1e-5, "layer", bias=True)
    projections = Projections(bias=True, output_bias=True)
    attention = Attention(v.heads, v.heads, dim, 1 / math.sqrt(dim), None, projections=projections)
    return Vision(
        hidden=v.width,
        vocab=0,
        layers=((attention, Mlp(4 * v.width, "quick_gelu", bias=True)),) * v.layers,
        norm=norm,
        embedding_norm=norm,
        final_norm=False,
        head=Head(tied=True),
        patches=Patches(
            sam.patches.image,
            sam.patches.size,
            class_token=True,
            positions="bicubic_antialias",
            table=v.image_size // v.patch_size,
            given=True,
        ),
        tensors=TensorLayout(
            names=tuple(_CLIP_NAMES.items()),
            fused=(Fused(f"{_CLIP_LAYER}.self_attn.qkv_proj", QKV),),
        ),
    )


def _qwen2(v: Any, sam: SamEncoder) -> Vision:
    """Qwen2's layers."""
    dim, norm = v.hidden_size // v.num_attention_heads, Norm(v.rms_norm_eps)
    base = getattr(getattr(v, "rope_parameters", None), "rope_theta", v.rope_theta)
    attention = HalfCausalAttention(
        v.num_attention_heads,
        v.num_key_value_heads,
        dim,
        1 / math.sqrt(dim),
        Rope(dim, base, 0),
        projections=Projections(bias=True),
    )
    return Vision(
        hidden=v.hidden_size,
        vocab=0,
        layers=((attention, Glu(v.intermediate_size, v.hidden_act)),) * v.num_hidden_layers,
        norm=norm,
        head=Head(tied=True),
        patches=Patches(sam.patches.image, sam.patches.size, positions="none", given=True),
        tensors=TensorLayout(names=tuple(_QWEN2_NAMES.items())),
    )
