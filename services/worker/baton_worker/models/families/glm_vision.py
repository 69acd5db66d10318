"""The encoders of GLM-4.1V (arXiv:2507.01006) and GLM-OCR: Qwen2-VL's with learned positions,
patches merged by a convolution and a gated projection."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from baton_worker.models.families.clip import part_of
from baton_worker.models.families.common import Config
from baton_worker.models.families.qwen_vision import BASE, LAYER, stack_of
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
    QkNorm,
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
_OCR: dict[str, Any] = {
    "num_heads": 16,
    "hidden_size": 1024,
    "attention_bias": True,
    "in_channels": 3,
    "out_hidden_size": 1536,
    "intermediate_size": 4096,
}
_OCR_NAMES = {
    "norm": "visual.post_layernorm",
    "query_norm": f"{LAYER}.attn.q_norm",
    "key_norm": f"{LAYER}.attn.k_norm",
}
_NAMES = {
    "positions": "visual.embeddings.position_embedding",
    "patch_norm": "visual.post_conv_layernorm",
    "norm": "visual.post_layernorm",
}


def glm4v_vision(c: Config, hidden: int, token: int = 151_343) -> VisionTower:
    """The tower; the config's `intermediate_size` is that of the projection."""
    v = part_of(c, "vision", _DEFAULTS)
    return _tower(v, _stack(v), v.intermediate_size, hidden, image_token(c, token))


def glm_ocr_vision(c: Config, hidden: int) -> VisionTower:
    """Biases, queries and keys normed by head, no learned positions; the projection is three times
    as wide as its input."""
    v = part_of(c, "vision", _DEFAULTS | _OCR)
    norm, bias = Norm(v.rms_norm_eps), v.attention_bias
    ffn, bare = Glu(v.intermediate_size, v.hidden_act, bias), Projections(bias, bias)
    patches = Patches(0, v.patch_size, bias=True, positions="none", frames=v.temporal_patch_size)
    up, down = "mlp.up_proj", "mlp.down_proj"
    stack = stack_of(
        v, v.hidden_size, norm, ffn, up=up, down=down, patches=patches, projections=bare
    )
    normed = tuple((_normed(mixer, norm), ffn) for mixer, ffn in stack.layers)
    names = (*stack.tensors.names, *_OCR_NAMES.items())
    tensors = replace(stack.tensors, names=names)
    stack = replace(stack, layers=normed, final_norm=True, tensors=tensors)
    inner = v.out_hidden_size * v.in_channels
    return _tower(v, stack, inner, hidden, image_token(c, 59_280))


def _normed(mixer: Any, norm: Norm) -> Any:
    return replace(mixer, qk_norm=QkNorm(norm))


def _tower(v: Any, stack: Vision, inner: int, hidden: int, token: int) -> VisionTower:
    merger = "visual.merger"
    names = (f"{merger}.gate_proj", f"{merger}.up_proj", f"{merger}.down_proj")
    norm = Norm(1e-5, "layer", bias=True)
    steps: tuple[Step, ...] = (
        Convolution("visual.downsample", v.hidden_size, v.out_hidden_size, v.spatial_merge_size),
        Dense(f"{merger}.proj", v.out_hidden_size, v.out_hidden_size, bias=False),
        Normed(norm, v.out_hidden_size, f"{merger}.post_projection_norm"),
        Activated("gelu"),
        GatedDense(v.out_hidden_size, inner, v.hidden_act, names),
    )
    return VisionTower(stack=stack, projector=steps, image_token=token, hidden=hidden)


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
