"""ERNIE 4.5-VL (ERNIE 4.5 technical report, Baidu 2025): Qwen2-VL's encoder, a resampler, and
experts of their own for the tokens of images."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from baton_worker.models.families.clip import part_of
from baton_worker.models.families.common import Config, architecture
from baton_worker.models.families.moe import ernie_moe
from baton_worker.models.families.moe_common import LAYER, of_layer
from baton_worker.models.families.qwen_vision import BASE, stack_of
from baton_worker.models.families.vision_common import with_tower
from baton_worker.models.families.vision_language import language_model, text_of
from baton_worker.spec import (
    Decoder,
    Dense,
    Ffn,
    Fused,
    Merge,
    Mlp,
    ModalityMoe,
    Moe,
    Norm,
    Normed,
    Patches,
    Repeated,
    Sections,
    Step,
    VisionTower,
)

_RENAMES = (
    (r"^model\.resampler_model\.", "resampler_model."),
    (r"^(model\.)?vision_(model|tower)\.", "visual."),
    (r"\.mlp\.gate\.weight_1$", ".mlp.vision_gate.weight"),
)
_NAMES = (("vision_router_correction", f"{LAYER}.mlp.moe_statics.vision_bias"),)
_VISION: dict[str, Any] = {
    "hidden_size": 1280,
    "hidden_act": "quick_gelu",
    "rms_norm_eps": 1e-6,
    "temporal_merge_size": 2,
}
_TOKENS = {
    "image_start_token_id": 101_304,
    "image_end_token_id": 101_305,
    "video_token_id": 103_367,
    "video_start_token_id": 101_306,
    "video_end_token_id": 101_307,
}
"""Tokens of media beside that of images, and their defaults in transformers."""
_PER_MODALITY = ("moe_layer_start_index", "moe_layer_end_index")


@architecture(
    "Ernie4_5_VLMoeForConditionalGeneration",
    "Ernie4_5_VL_MoeForConditionalGeneration",
    "Ernie4_5_VLForConditionalGeneration",
)
def ernie_vl(c: Config) -> Decoder:
    """Experts of image tokens are stored after those of texts."""
    text = text_of(c)
    _check_layers(text)
    spec = language_model(
        _of_modality(text, 0), ernie_moe, Sections((22, 22, 20), "grid"), base=500_000.0
    )
    layers = tuple((mixer, _by_modality(text, ffn)) for mixer, ffn in spec.layers)
    routers = tuple(
        Fused(f"{LAYER}.mlp.{gate}", (role,), transposed=True)
        for gate, role in (("gate", "router"), ("vision_gate", "vision_router"))
    )
    names = (*spec.tensors.names, *_NAMES)
    tensors = replace(spec.tensors, names=names, stacked=(), fused=routers)
    image = _image_token(c)
    full = replace(
        spec,
        layers=layers,
        style="by_modality",
        head=replace(spec.head, bias=False),
        tensors=tensors,
        vision_tokens=(image, *(getattr(c, name, id) for name, id in _TOKENS.items())),
    )
    return with_tower(full, _tower(c, full, image), _RENAMES)


def _image_token(c: Config) -> int:
    token = getattr(c, "image_token_id", None)
    return int(getattr(c, "im_patch_id", 100_295) if token is None else token)


def _check_layers(c: Config) -> None:
    """Experts of both kinds are in the same layers."""
    last = c.num_hidden_layers - 1
    for name in _PER_MODALITY:
        layers = getattr(c, name, 0)
        if isinstance(layers, list) and len({min(at, last) for at in layers}) > 1:
            raise AttributeError(f"{name} {layers} differs by modality")


def _of_modality(c: Config, modality: int) -> Config:
    """The config with the sizes of the experts of texts (0) or images (1)."""
    fields = {name: value for name, value in vars(c).items() if name.startswith("moe_")}
    sizes = {name: of_layer(value, modality) for name, value in fields.items()}
    return SimpleNamespace(**vars(c) | sizes)


def _by_modality(c: Config, ffn: Ffn | None) -> Ffn | None:
    if not isinstance(ffn, Moe):
        return ffn
    visual = _of_modality(c, 1)
    vision = replace(
        ffn,
        router=replace(ffn.router, num_experts=visual.moe_num_experts),
        expert=replace(ffn.expert, intermediate=visual.moe_intermediate_size),
        shared=None,
        first_number=ffn.router.num_experts,
    )
    return ModalityMoe(ffn, vision)


def _tower(c: Config, decoder: Decoder, image_token: int) -> VisionTower:
    """Layer norms, and a projection of patches without bias."""
    v = part_of(c, "vision", BASE | _VISION)
    if v.temporal_merge_size != 2:
        raise AttributeError(f"vision_config.temporal_merge_size {v.temporal_merge_size} is not 2")
    norm, width = Norm(v.rms_norm_eps, "layer", bias=True), v.hidden_size
    inner = getattr(v, "intermediate_size", None) or int(width * getattr(v, "mlp_ratio", 4))
    ffn, patches = Mlp(inner, v.hidden_act, bias=True), Patches(0, v.patch_size, positions="none")
    stack = stack_of(
        v, width, norm, ffn, up="mlp.fc1", down="mlp.fc2", patches=replace(patches, flat=True)
    )
    names = (*stack.tensors.names, ("norm", "visual.ln"))
    stack = replace(stack, final_norm=True, tensors=replace(stack.tensors, names=names))
    return VisionTower(
        stack=stack,
        projector=_resampler(v, norm, decoder),
        image_token=image_token,
        hidden=decoder.hidden,
    )


def _resampler(v: Any, norm: Norm, decoder: Decoder) -> tuple[Step, ...]:
    """Windows of patches, then pairs of frames: an image is both of a pair."""
    wide = v.hidden_size * v.spatial_merge_size**2

    def compressed(name: str, inputs: int) -> tuple[Step, ...]:
        return (
            Dense(f"{name}.0", inputs, wide, activation="gelu"),
            Dense(f"{name}.2", wide, wide),
            Normed(norm, wide, f"{name}.3"),
        )

    return (
        Merge(v.spatial_merge_size),
        *compressed("resampler_model.spatial_linear", wide),
        Repeated(2),
        *compressed("resampler_model.temporal_linear", 2 * wide),
        Dense("resampler_model.mlp", wide, decoder.hidden),
        Normed(Norm(decoder.norm.eps), decoder.hidden, "resampler_model.after_norm"),
    )
