"""The encoder of GLM-4.1V (arXiv:2507.01006): Qwen2-VL's with learned positions, patches merged by
a convolution and a gated projection."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from baton_worker.models.families.clip import part_of
from baton_worker.models.families.common import Config
from baton_worker.models.families.qwen_vision import BASE, stack_of
from baton_worker.models.families.vision_common import image_token
from baton_worker.spec import (
    Activated,
    Convolution,
    Dense,
    GatedDense,
    Glu,
    Norm,
    Normed,
    Patches,
    Projections,
    Step,
    Vision,
    VisionTower,
)

_DEFAULTS: dict[str, Any] = BASE | {
    "depth": 24,
    "num_heads": 12,
    "hidden_size": 1536,
    "hidden_act": "silu",
    "attention_bias": False,
    "image_size": 336,
    "rms_norm_eps": 1e-5,
    "out_hidden_size": 4096,
    "intermediate_size": 13_696,
}
_NAMES = {
    "positions": "visual.embeddings.position_embedding",
    "patch_norm": "visual.post_conv_layernorm",
    "norm": "visual.post_layernorm",
}


def glm4v_vision(c: Config, hidden: int) -> VisionTower:
    """The tower; the config's `intermediate_size` is that of the projection."""
    v, merger = part_of(c, "vision", _DEFAULTS), "visual.merger"
    names = (f"{merger}.gate_proj", f"{merger}.up_proj", f"{merger}.down_proj")
    norm = Norm(1e-5, "layer", bias=True)
    steps: tuple[Step, ...] = (
        Convolution("visual.downsample", v.hidden_size, v.out_hidden_size, v.spatial_merge_size),
        Dense(f"{merger}.proj", v.out_hidden_size, v.out_hidden_size, bias=False),
        Normed(norm, v.out_hidden_size, f"{merger}.post_projection_norm"),
        Activated("gelu"),
        GatedDense(v.out_hidden_size, v.intermediate_size, v.hidden_act, names),
    )
    token = image_token(c, 151_343)
    return VisionTower(stack=_stack(v), projector=steps, image_token=token, hidden=hidden)


def _stack(v: Any) -> Vision:
    norm, ffn = Norm(v.rms_norm_eps), Glu(v.out_hidden_size, v.hidden_act)
    patches = Patches(
        v.image_size,
        v.patch_size,
        bias=True,
        positions="sampled",
        frames=v.temporal_patch_size,
        norm=norm,
    )
    up, down = "mlp.up_proj", "mlp.down_proj"
    bare = Projections(bias=v.attention_bias)
    stack = stack_of(
        v, v.hidden_size, norm, ffn, up=up, down=down, patches=patches, projections=bare
    )
    names = (*stack.tensors.names, *_NAMES.items())
    return replace(stack, final_norm=True, tensors=replace(stack.tensors, names=names))
