"""Models with SigLIP towers: PaliGemma, Gemma 3, Idefics3 and SmolVLM."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from baton_worker.models.families.clip import siglip_vision
from baton_worker.models.families.common import Config, architecture
from baton_worker.models.families.vision_common import (
    image_token,
    text_model,
    with_spans,
    with_tower,
)
from baton_worker.spec import (
    Attention,
    Decoder,
    Dense,
    Fused,
    Merge,
    Mixer,
    Norm,
    Normed,
    Step,
    TensorLayout,
    Vision,
    VisionTower,
)

_TOWER, _PROJECTOR = "vision_tower", "multi_modal_projector"
_HEAD = (f"{_TOWER}.head.", f"{_TOWER}.embeddings.position_ids")
_MATRIX = (
    rf"^{_PROJECTOR}\.mm_input_projection_weight$",
    f"{_PROJECTOR}.mm_input_projection.weight",
)


@architecture("PaliGemmaForConditionalGeneration")
def paligemma(c: Config) -> Decoder:
    """PaliGemma 1 and 2 (arXiv:2407.07726, arXiv:2412.03555): one projection, and a prompt whose
    tokens all see one another."""
    decoder = _within_windows(with_spans(text_model(c, "gemma", tied=True)))
    stack = siglip_vision(c, _TOWER)
    steps = (Dense(f"{_PROJECTOR}.linear", stack.hidden, decoder.hidden),)
    tower = replace(_tower(c, stack, steps, decoder.hidden, 256_000), bidirectional=True)
    return with_tower(decoder, tower, unused=_HEAD)


def _within_windows(decoder: Decoder) -> Decoder:
    """A text model for sequences that its windows hide nothing of: a prompt whose tokens all see
    one another is not bounded by them, and what is generated behind it is."""
    masks = [mixer.mask for mixer, _ in decoder.layers if isinstance(mixer, Attention)]
    windows = [mask.window for mask in masks if mask.window is not None]
    layers = tuple((_unbounded(mixer), ffn) for mixer, ffn in decoder.layers)
    return replace(decoder, layers=layers, max_length=min([decoder.max_length, *windows]))


def _unbounded(mixer: Mixer | None) -> Mixer | None:
    if not isinstance(mixer, Attention):
        return mixer
    return replace(mixer, mask=replace(mixer.mask, window=None))


@architecture("Gemma3ForConditionalGeneration")
def gemma3(c: Config) -> Decoder:
    """Patches are averaged to `mm_tokens_per_image` vectors, normed and projected
    (arXiv:2503.19786)."""
    decoder = with_spans(text_model(c, "gemma3_text", tied=True))
    stack = siglip_vision(c, _TOWER)
    side = math.isqrt(getattr(c, "mm_tokens_per_image", 256))
    size = stack.patches.image // stack.patches.size // side
    norm = Norm(stack.norm.eps, offset=1.0)
    steps = (
        Merge(size, "mean"),
        Normed(norm, stack.hidden, f"{_PROJECTOR}.mm_soft_emb_norm"),
        Dense(f"{_PROJECTOR}.projection", stack.hidden, decoder.hidden, bias=False),
    )
    matrix = Fused(f"{_PROJECTOR}.mm_input_projection", ("projection",), transposed=True)
    stack = _stored(stack, (matrix,), projection=f"{_PROJECTOR}.projection")
    tower = replace(_tower(c, stack, steps, decoder.hidden, 262_144), bidirectional=True)
    model = with_tower(decoder, tower, unused=_HEAD)
    return replace(model, tensors=replace(model.tensors, renames=(*model.tensors.renames, _MATRIX)))


@architecture("Idefics3ForConditionalGeneration", "SmolVLMForConditionalGeneration")
def idefics3(c: Config) -> Decoder:
    """Patches are merged and projected (arXiv:2408.12637); positions are those at the same share of
    a side."""
    decoder, stack = text_model(c), siglip_vision(c, "vision_model", _IDEFICS3)
    stack = replace(stack, patches=replace(stack.patches, positions="buckets"))
    size = getattr(c, "scale_factor", 2)
    name = "connector.modality_projection.proj"
    steps = (Merge(size), Dense(name, stack.hidden * size**2, decoder.hidden, bias=False))
    return with_tower(decoder, _tower(c, stack, steps, decoder.hidden, 128_257))


_IDEFICS3: dict[str, Any] = {
    "hidden_size": 1152,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
    "patch_size": 32,
}


def _tower(
    c: Config, stack: Vision, steps: tuple[Step, ...], hidden: int, token: int
) -> VisionTower:
    token = image_token(c, token)
    return VisionTower(stack=stack, projector=steps, image_token=token, hidden=hidden)


def _stored(stack: Vision, fused: tuple[Fused, ...], **names: str) -> Vision:
    """The stack with more names and fused tensors of its projector."""
    layout = TensorLayout(names=(*stack.tensors.names, *names.items()), fused=fused)
    return replace(stack, tensors=layout)
