"""LLaVA (Liu et al. 2023, arXiv:2304.08485) and models that differ in tower, tiles or merging."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

from baton_worker.models.families.clip import clip_vision, siglip_vision
from baton_worker.models.families.common import Config, architecture
from baton_worker.models.families.hybrid import minimax_text_01
from baton_worker.models.families.pixtral import pixtral_vision
from baton_worker.models.families.swin import RENAMES as _SWIN
from baton_worker.models.families.swin import swin_vision
from baton_worker.models.families.vision_common import (
    RENAMES,
    image_token,
    text_model,
    two_layers,
    video_token,
    with_tower,
)
from baton_worker.spec import (
    Decoder,
    Dense,
    Merge,
    Newlines,
    Norm,
    Normed,
    VideoPlaceholders,
    Vision,
    VisionTower,
)

_VISION = {
    "clip_vision_model": clip_vision,
    "siglip_vision_model": siglip_vision,
    "pixtral": pixtral_vision,
    "swin": swin_vision,
}
"""Stacks, by the model type of the vision config."""
_TOWER, _PROJECTOR = "vision_tower", "multi_modal_projector"
_LIGHTON = (
    (r"^(model\.)?vision_encoder\.", f"{_TOWER}."),
    (r"^(model\.)?vision_projection\.", f"{_PROJECTOR}."),
)
_PINPOINTS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]


@architecture(
    "LlavaForConditionalGeneration",
    "PixtralForConditionalGeneration",
    "TarsierForConditionalGeneration",
)
def llava(c: Config) -> Decoder:
    """The states of some layers through two projections. Tarsier (arXiv:2407.00634) differs in the
    tokens between rows alone."""
    decoder = text_model(c)
    seen, kind = tower(c, decoder.hidden), getattr(c.vision_config, "model_type", "")
    if seen.drops_class_token and kind == "siglip_vision_model":
        raise AttributeError("vision_feature_select_strategy full, as SigLIP has no class token")
    return with_tower(decoder, seen, (*RENAMES, *_SWIN), unused=unread(c))


@architecture("VipLlavaForConditionalGeneration")
def vip_llava(c: Config) -> Decoder:
    """ViP-LLaVA (arXiv:2312.00784): the states of several layers, normed before the projections."""
    old = getattr(c, "vision_feature_layers", [-2, -5, -8, -11, 6])
    layers = getattr(c, "vision_feature_layer", old)
    c = SimpleNamespace(**vars(c) | {"vision_feature_layer": layers})
    decoder = text_model(c)
    vision = replace(tower(c, decoder.hidden), drops_class_token=True)
    count = len(vision.taps) or 1
    norm = Norm(getattr(c, "projector_layernorm_eps", 1e-5), "layer", bias=True)
    normed = Normed(norm, count * vision.stack.hidden, f"{_PROJECTOR}.projector_layernorm")
    vision = replace(vision, projector=(normed, *vision.projector))
    return with_tower(decoder, vision, unused=unread(c))


@architecture("LlavaNextForConditionalGeneration", "LlavaNextVideoForConditionalGeneration")
def llava_next(c: Config) -> Decoder:
    """Tiles of the offered resolution that fits best, as rows with a vector after each."""
    decoder = text_model(c)
    vision = tower(c, decoder.hidden)
    return with_tower(
        decoder, replace(vision, arrangement=newlines(c, vision.stack)), unused=unread(c)
    )


@architecture("LlavaOnevisionForConditionalGeneration")
def llava_onevision(c: Config) -> Decoder:
    """At most so many tiles of embeddings (arXiv:2408.03326)."""
    decoder = text_model(c, "qwen2")
    vision = replace(_most_tiles(c, decoder), video=VideoPlaceholders(video_token(c, 151_647)))
    return with_tower(decoder, vision, unused=unread(c))


@architecture("MiniMaxVL01ForConditionalGeneration")
def minimax_vl_01(c: Config) -> Decoder:
    """LLaVA-NeXT's tiles beside MiniMax-Text-01 (arXiv:2501.08313)."""
    length = getattr(c, "served_length", None)
    decoder = minimax_text_01(SimpleNamespace(**vars(c.text_config) | {"served_length": length}))
    vision = tower(c, decoder.hidden)
    return with_tower(
        decoder, replace(vision, arrangement=newlines(c, vision.stack)), unused=unread(c)
    )


@architecture("RForConditionalGeneration")
def r_4b(c: Config) -> Decoder:
    """R-4B (arXiv:2508.21113): LLaVA-OneVision's tiles beside Qwen3; states are normed before the
    projections."""
    return _normed(c, wide=1)


@architecture("BeeForConditionalGeneration")
def bee(c: Config) -> Decoder:
    """Bee (arXiv:2510.13795): as R-4B, with a wider projection."""
    return _normed(c, wide=4)


def _normed(c: Config, wide: int) -> Decoder:
    decoder = text_model(c, "qwen3")
    vision, hidden = _most_tiles(c, decoder), decoder.hidden
    steps = (
        Normed(Norm(1e-6, "layer", bias=True), vision.stack.hidden, f"{_PROJECTOR}.pre_norm"),
        Dense(f"{_PROJECTOR}.linear_1", vision.stack.hidden, wide * hidden, activation="gelu"),
        Dense(f"{_PROJECTOR}.linear_2", wide * hidden, hidden),
    )
    return with_tower(decoder, replace(vision, projector=steps), unused=unread(c, -1))


def _most_tiles(c: Config, decoder: Decoder) -> VisionTower:
    vision = tower(
        c, decoder.hidden, kind="siglip_vision_model", layer=-1, select="full", token=151_646
    )
    most = int(getattr(c, "vision_aspect_ratio", "anyres_max_9").removeprefix("anyres_max_"))
    return replace(vision, arrangement=replace(newlines(c, vision.stack), most_tiles=most))


@architecture("Mistral3ForConditionalGeneration")
def mistral3(c: Config) -> Decoder:
    """Pixtral's tower, and 2 x 2 patches merged before the projection."""
    return _merged(c, text_model(c, "mistral", tied=True), token=10)


@architecture("LightOnOCRForConditionalGeneration", "LightOnOcrForConditionalGeneration")
def lighton_ocr(c: Config) -> Decoder:
    """Mistral 3's tower beside Qwen3 (arXiv:2601.14251)."""
    decoder = _merged(c, text_model(c, "qwen3", tied=True), token=151_655)
    renames = (*_LIGHTON, *decoder.tensors.renames)
    return replace(decoder, tensors=replace(decoder.tensors, renames=renames))


def _merged(c: Config, decoder: Decoder, token: int) -> Decoder:
    vision = tower(c, decoder.hidden, kind="pixtral", layer=-1, bias=False, token=token)
    width, size = vision.stack.hidden, getattr(c, "spatial_merge_size", 2)
    merger = (
        Normed(
            Norm(decoder.norm.eps),
            width,
            f"{_PROJECTOR}.norm",
        ),
        Merge(size, "channels"),
        Dense(f"{_PROJECTOR}.patch_merger.merging_layer", width * size**2, width, bias=False),
    )
    vision = replace(vision, projector=(*merger, *vision.projector))
    return with_tower(decoder, vision, unused=unread(c))


def tower(
    c: Config,
    hidden: int,
    *,
    kind: str = "clip_vision_model",
    layer: int = -2,
    select: str = "default",
    bias: bool = True,
    token: int = 32_000,
) -> VisionTower:
    """The tower of a config; the rest are the architecture's defaults."""
    kind = getattr(c.vision_config, "model_type", kind)
    if kind not in _VISION:
        raise AttributeError(f"vision_config.model_type {kind} is not one of {', '.join(_VISION)}")
    stack = _VISION[kind](c, _TOWER)
    layers = feature_layers(c, len(stack.layers), layer)
    bias = getattr(c, "multimodal_projector_bias", bias)
    return VisionTower(
        stack=replace(stack, layers=stack.layers[: max(layers)], final_norm=False),
        projector=two_layers(c, stack.out_hidden * len(layers), hidden, bias=bias),
        image_token=image_token(c, token),
        hidden=hidden,
        taps=layers if len(layers) > 1 else (),
        drops_class_token=getattr(c, "vision_feature_select_strategy", select) == "default",
    )


def feature_layers(c: Config, num_layers: int, default: int) -> tuple[int, ...]:
    """The layers whose states are read: `vision_feature_layer` counts the input as state 0."""
    selected = getattr(c, "vision_feature_layer", default)
    layers = [selected] if isinstance(selected, int) else selected
    return tuple(layer if layer >= 0 else num_layers + 1 + layer for layer in layers)


def unread(c: Config, default: int = -2) -> tuple[str, ...]:
    """Tensors of layers above the ones that are seen, and of the tower's head; `default` as of
    `taken`."""
    count = getattr(c.vision_config, "num_hidden_layers", 24)
    layers = range(max(feature_layers(c, count, default)), count)
    return (
        f"{_TOWER}.post_layernorm.",
        f"{_TOWER}.layernorm.",
        f"{_TOWER}.embeddings.position_ids",
        f"{_TOWER}.head.",
        *(f"{_TOWER}.encoder.layers.{layer}." for layer in layers),
        "image_newline",
    )


def newlines(c: Config, stack: Vision) -> Newlines:
    """Rows of the tiles of an image."""
    offered = getattr(c, "image_grid_pinpoints", _PINPOINTS)
    patches = stack.patches
    return Newlines(
        "image_newline",
        patches.image,
        patches.image // patches.size,
        tuple((tall, wide) for tall, wide in offered),
    )
