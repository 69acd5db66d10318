"""Towers whose patches are merged first: Command A Vision, Aya Vision, Llama 4."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from baton_worker.models.families.clip import part_of, siglip_vision
from baton_worker.models.families.common import Config, architecture
from baton_worker.models.families.llava import feature_layers, unread
from baton_worker.models.families.vision_common import RENAMES, image_token, text_model, with_tower
from baton_worker.spec import (
    Activated,
    Attention,
    Decoder,
    Dense,
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

_TOWER, _PROJECTOR = "vision_tower", "multi_modal_projector"
_HEAD = (f"{_TOWER}.head.", f"{_TOWER}.embeddings.position_ids")


@architecture("Cohere2VisionForConditionalGeneration")
def cohere2_vision(c: Config) -> Decoder:
    """Command A Vision: the final states of SigLIP 2."""
    decoder, stack = _unscaled(c), siglip_vision(c, _TOWER)
    inner = getattr(c, "alignment_intermediate_size", 36_864)
    return with_tower(decoder, _gated(c, stack, decoder.hidden, inner), unused=_HEAD)


@architecture("AyaVisionForConditionalGeneration")
def aya_vision(c: Config) -> Decoder:
    """Aya Vision (arXiv:2505.08751): the states of one layer, and a norm before the projection."""
    decoder, stack = _unscaled(c), siglip_vision(c, _TOWER)
    (last,) = feature_layers(c, len(stack.layers), -1)
    stack = replace(stack, layers=stack.layers[:last], final_norm=False)
    inner = getattr(c, "alignment_intermediate_size", decoder.hidden)
    tower = _gated(c, stack, decoder.hidden, inner)
    merge, *rest = tower.projector
    norm = Norm(getattr(c, "adapter_layer_norm_eps", 1e-6), "layer", bias=True)
    normed = Normed(norm, stack.hidden * tower.merge**2, f"{_PROJECTOR}.layernorm")
    tower = replace(tower, projector=(merge, normed, *rest))
    return with_tower(decoder, tower, unused=unread(c, -1))


def _unscaled(c: Config) -> Decoder:
    """Cohere's text model; transformers does not scale the logits of those that see."""
    decoder = text_model(c, "cohere2", tied=True)
    return replace(decoder, head=replace(decoder.head, scale=1.0))


def _gated(c: Config, stack: Vision, hidden: int, inner: int) -> VisionTower:
    size = getattr(c, "downsample_factor", 2)
    steps: tuple[Step, ...] = (
        Merge(size),
        Dense(f"{_PROJECTOR}.linear_1", stack.hidden * size**2, inner),
        Activated("silu", gated=True),
        Dense(f"{_PROJECTOR}.linear_2", inner // 2, hidden),
    )
    token = image_token(c, 255_036)
    return VisionTower(stack=stack, projector=steps, image_token=token, hidden=hidden)


_LLAMA4: dict[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 34,
    "num_attention_heads": 16,
    "intermediate_size": 5632,
    "image_size": 448,
    "patch_size": 14,
    "pixel_shuffle_ratio": 0.5,
    "vision_output_dim": 7680,
    "projector_input_dim": 4096,
    "projector_output_dim": 4096,
    "rope_theta": 10_000.0,
}
_NAMES = {
    "patches": "vision_model.patch_embedding.linear",
    "class_token": "vision_model.class_embedding",
    "positions": "vision_model.positional_embedding_vlm",
    "embedding_norm": "vision_model.layernorm_pre",
    "norm": "vision_model.layernorm_post",
    "mixer_norm": "vision_model.model.layers.{layer}.input_layernorm",
    "query": "vision_model.model.layers.{layer}.self_attn.q_proj",
    "key": "vision_model.model.layers.{layer}.self_attn.k_proj",
    "value": "vision_model.model.layers.{layer}.self_attn.v_proj",
    "output": "vision_model.model.layers.{layer}.self_attn.o_proj",
    "ffn_norm": "vision_model.model.layers.{layer}.post_attention_layernorm",
    "up": "vision_model.model.layers.{layer}.mlp.fc1",
    "down": "vision_model.model.layers.{layer}.mlp.fc2",
}
_POSITIONS = (
    r"^vision_model\.positional_embedding_vlm$",
    "vision_model.positional_embedding_vlm.weight",
)


@architecture("Llama4ForConditionalGeneration")
def llama4_vision(c: Config) -> Decoder:
    """Llama 4: columns and rows by rotation beside learned positions."""
    decoder, v = text_model(c, "llama4_text"), part_of(c, "vision", _LLAMA4)
    size, adapter = round(1 / v.pixel_shuffle_ratio), "vision_model.vision_adapter.mlp"
    inner, wide = v.projector_input_dim, v.projector_output_dim
    steps: tuple[Step, ...] = (
        Merge(size),
        Dense(f"{adapter}.fc1", v.hidden_size * size**2, inner, bias=False, activation="gelu"),
        Dense(f"{adapter}.fc2", inner, wide, bias=False, activation="gelu"),
        Dense(f"{_PROJECTOR}.linear_1", v.vision_output_dim, decoder.hidden, bias=False),
    )
    tower = VisionTower(
        stack=_llama4_stack(v),
        projector=steps,
        image_token=image_token(c, 200_092),
        hidden=decoder.hidden,
        drops_class_token=True,
    )
    return with_tower(decoder, tower, (*RENAMES, _POSITIONS))


def _llama4_stack(v: Any) -> Vision:
    heads = v.num_attention_heads
    dim = v.hidden_size // heads
    rope_parameters = getattr(v, "rope_parameters", None)
    base = getattr(rope_parameters, "rope_theta", None) or v.rope_theta
    sections = Sections((dim // 4, dim // 4), "reversed")
    rope = Rope(dim, base, 0, "axial", interleaved=True, sections=sections)
    projections = Projections(bias=True, output_bias=True)
    attention = Attention(heads, heads, dim, 1 / math.sqrt(dim), rope, projections=projections)
    norm = Norm(1e-5, "layer", bias=True)
    return Vision(
        hidden=v.hidden_size,
        vocab=0,
        layers=((attention, Mlp(v.intermediate_size, "gelu", bias=True)),) * v.num_hidden_layers,
        norm=norm,
        embedding_norm=norm,
        head=Head(tied=True),
        patches=Patches(v.image_size, v.patch_size, class_token=True, class_row=-1, flat=True),
        tensors=TensorLayout(names=tuple(_NAMES.items())),
    )
