"""MiniCPM-V (arXiv:2408.01800) and MiniCPM-o: slices of an image, and a resampler of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

from baton_worker.models.families.clip import siglip_vision
from baton_worker.models.families.common import Config, architecture
from baton_worker.models.families.llama import llama, qwen2, qwen3
from baton_worker.models.families.vision_common import image_token, with_tower
from baton_worker.spec import (
    Decoder,
    Fused,
    Norm,
    Resampler,
    Slices,
    TensorLayout,
    Vision,
    VisionTower,
)

_TEXTS: dict[float, Callable[[Config], Decoder]] = {
    2.5: llama,
    2.6: qwen2,
    4.0: llama,
    4.5: qwen3,
}
"""The language model of each version."""
_TOWER, _RESAMPLER, _HEAD_DIM = "vpm", "resampler", 128
_ATTENTION = f"{_RESAMPLER}.attn"
_PARTS = ("query", "key", "value")
_RENAMES = (
    (r"^llm\.", ""),
    (rf"^{_ATTENTION}\.in_proj_", f"{_ATTENTION}.in_proj."),
)
_UNUSED = (f"{_RESAMPLER}.pos_embed", f"{_TOWER}.embeddings.position_ids", f"{_TOWER}.head.")
_SPEECH = ("apm.", "audio_projection_layer.", "audio_avg_pooler.", "tts.")
"""The audio encoder and the speech output of MiniCPM-o."""
_DEFAULTS = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "image_size": 980,
    "patch_size": 14,
}


@architecture("MiniCPMV")
def minicpm_v(c: Config) -> Decoder:
    """Images are seen; version 2.0 has another encoder."""
    version = float(getattr(c, "version", 2.5))
    if version not in _TEXTS:
        known = ", ".join(map(str, _TEXTS))
        raise AttributeError(f"version {version} is not one of {known}")
    decoder, stack = _TEXTS[version](c), _stack(c)
    return with_tower(decoder, _tower(c, stack, decoder.hidden), _RENAMES, _unused(stack))


@architecture("MiniCPMO")
def minicpm_o(c: Config) -> Decoder:
    """Images only: weights of audio and speech are not read."""
    decoder = minicpm_v(c)
    unused = (*decoder.tensors.unused, *_SPEECH)
    return replace(decoder, tensors=replace(decoder.tensors, unused=unused))


def _tower(c: Config, stack: Vision, hidden: int) -> VisionTower:
    slice_config = getattr(c, "slice_config", None) or SimpleNamespace()
    sliced = getattr(c, "slice_mode", True)
    resampler = Resampler(
        _RESAMPLER,
        queries=getattr(c, "query_num", 64),
        inputs=stack.hidden,
        width=hidden,
        num_heads=max(1, hidden // _HEAD_DIM),
        norm=Norm(1e-6, "layer", bias=True),
    )
    return VisionTower(
        stack=stack,
        projector=(resampler,),
        image_token=image_token(c, 0, "<unk>"),
        hidden=hidden,
        arrangement=Slices(
            getattr(slice_config, "scale_resolution", 448),
            getattr(slice_config, "max_slice_nums", 9) if sliced else 1,
            stack.patches.size,
        ),
    )


def _stack(c: Config) -> Vision:
    """SigLIP, each patch with the position at the same share of a side."""
    stack = siglip_vision(c, _TOWER, _DEFAULTS)
    names = {part: f"{_ATTENTION}.{part}" for part in _PARTS}
    roles = tuple((f"resampler_{part}", name) for part, name in names.items())
    fused = Fused(f"{_ATTENTION}.in_proj", tuple(role for role, _ in roles))
    layers = stack.layers[:-1] if getattr(c, "drop_vision_last_layer", False) else stack.layers
    return replace(
        stack,
        layers=layers,
        patches=replace(stack.patches, positions="buckets"),
        tensors=TensorLayout(names=(*stack.tensors.names, *roles), fused=(fused,)),
    )


def _unused(stack: Vision) -> tuple[str, ...]:
    """A dropped layer that a checkpoint may still hold, among others."""
    return (*_UNUSED, f"{_TOWER}.encoder.layers.{len(stack.layers)}.")
