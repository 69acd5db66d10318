"""dots.ocr (arXiv:2512.02498): a tower of RMS norms and gated layers beside Qwen2."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from baton_worker.models.families.clip import part_of
from baton_worker.models.families.common import Config, architecture
from baton_worker.models.families.llama import qwen2
from baton_worker.models.families.qwen_vision import LAYER, stack_of
from baton_worker.models.families.vision_common import image_token, with_tower
from baton_worker.spec import (
    Decoder,
    Dense,
    Glu,
    Merge,
    Norm,
    Normed,
    Patches,
    Projections,
    Step,
    Vision,
    VisionTower,
)

_DEFAULTS: dict[str, Any] = {
    "embed_dim": 1536,
    "intermediate_size": 4224,
    "num_hidden_layers": 42,
    "num_attention_heads": 12,
    "patch_size": 14,
    "temporal_patch_size": 1,
    "spatial_merge_size": 2,
    "rms_norm_eps": 1e-5,
    "use_bias": False,
    "post_norm": True,
}
_NAMES = {
    "patch_norm": "visual.patch_embed.patchifier.norm",
    "norm": "visual.post_trunk_norm",
    "gate": f"{LAYER}.mlp.fc1",
}
_RENAMES = (
    (r"^vision_tower\.patch_embed\.patchifier\.proj\.", "visual.patch_embed.proj."),
    (r"^vision_tower\.", "visual."),
)


@architecture("DotsOCRForCausalLM")
def dots_ocr(c: Config) -> Decoder:
    """Positions of texts are those of Qwen2, on one axis."""
    decoder, v = qwen2(c), part_of(c, "vision", _DEFAULTS)
    width, size = v.embed_dim, v.spatial_merge_size
    inner = width * size**2
    steps: tuple[Step, ...] = (
        Normed(Norm(1e-6, "layer", bias=True), width, "visual.merger.ln_q"),
        Merge(size),
        Dense("visual.merger.mlp.0", inner, inner, activation="gelu"),
        Dense("visual.merger.mlp.2", inner, decoder.hidden),
    )
    tower = VisionTower(
        stack=_stack(v),
        projector=steps,
        image_token=image_token(c, 151_665),
        hidden=decoder.hidden,
    )
    return with_tower(decoder, tower, _RENAMES)


def _stack(v: Any) -> Vision:
    v.depth, v.num_heads = v.num_hidden_layers, v.num_attention_heads
    norm = Norm(v.rms_norm_eps)
    stack = stack_of(
        v,
        v.embed_dim,
        norm,
        Glu(v.intermediate_size, "silu", v.use_bias),
        up="mlp.fc3",
        down="mlp.fc2",
        patches=Patches(0, v.patch_size, bias=True, positions="none", norm=norm),
        projections=Projections(bias=v.use_bias, output_bias=v.use_bias),
    )
    names = (*stack.tensors.names, *_NAMES.items())
    return replace(stack, final_norm=v.post_norm, tensors=replace(stack.tensors, names=names))
