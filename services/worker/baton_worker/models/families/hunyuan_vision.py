"""Encoder of Hunyuan-VL (HunyuanOCR, arXiv:2511.19575): images of any size, 2 x 2 patches merged, a
vector after each row and one at both ends."""

from __future__ import annotations

import math
from typing import Any

from baton_worker.models.families.clip import part_of
from baton_worker.models.families.common import Config
from baton_worker.models.families.vision_common import image_token
from baton_worker.spec import (
    Activated,
    Attention,
    Bracket,
    Convolution,
    Dense,
    Head,
    Mlp,
    Norm,
    Normed,
    Patches,
    Projections,
    RowEnds,
    Step,
    TensorLayout,
    Vision,
    VisionTower,
)

_DEFAULTS: dict[str, Any] = {
    "hidden_act": "gelu",
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "interpolate_mode": "bilinear",
    "rms_norm_eps": 1e-5,
    "num_attention_heads": 16,
    "num_hidden_layers": 27,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "max_image_size": 2048,
}
_TOWER, _MERGER = "vision_tower", "vision_tower.patch_merger"
_LAYER = f"{_TOWER}.layers.{{layer}}"
_NAMES = {
    "patches": f"{_TOWER}.embeddings.patch_embedding",
    "positions": f"{_TOWER}.embeddings.position_embedding",
    "mixer_norm": f"{_LAYER}.layer_norm1",
    "query": f"{_LAYER}.self_attn.q_proj",
    "key": f"{_LAYER}.self_attn.k_proj",
    "value": f"{_LAYER}.self_attn.v_proj",
    "output": f"{_LAYER}.self_attn.o_proj",
    "ffn_norm": f"{_LAYER}.layer_norm2",
    "up": f"{_LAYER}.mlp.fc1",
    "down": f"{_LAYER}.mlp.fc2",
}
RENAMES = (
    (r"^(model\.)?vit\.", f"{_TOWER}."),
    (r"^model\.vision_tower\.", f"{_TOWER}."),
    (rf"^({_TOWER}\.layers\.\d+)\.input_layernorm\.", r"\1.layer_norm1."),
    (rf"^({_TOWER}\.layers\.\d+)\.post_attention_layernorm\.", r"\1.layer_norm2."),
    (rf"^({_TOWER}\.layers\.\d+)\.mlp\.dense_h_to_4h\.", r"\1.mlp.fc1."),
    (rf"^({_TOWER}\.layers\.\d+)\.mlp\.dense_4h_to_h\.", r"\1.mlp.fc2."),
    (rf"^{_TOWER}\.perceive\.proj\.0\.", f"{_MERGER}.proj_conv."),
    (rf"^{_TOWER}\.perceive\.proj\.2\.", f"{_MERGER}.proj_out."),
    (rf"^{_TOWER}\.perceive\.", f"{_MERGER}."),
)
"""Names of Tencent's own code, and prefixes of transformers."""
UNUSED = (f"{_MERGER}.image_sep",)
"""Tensors that both implementations hold and do not read."""


def hunyuan_vision(c: Config, hidden: int) -> VisionTower:
    """SigLIP's layers behind one convolution, with positions resized to each image."""
    v = part_of(c, "vision", _DEFAULTS)
    return VisionTower(
        stack=_stack(v),
        projector=_merger(v, hidden),
        image_token=image_token(c, 120_120),
        hidden=hidden,
        rope_index="xdrope",
    )


def _stack(v: Any) -> Vision:
    if v.interpolate_mode not in ("bilinear", "bicubic"):
        raise AttributeError(f"interpolate_mode {v.interpolate_mode} is not bilinear or bicubic")
    dim = v.hidden_size // v.num_attention_heads
    attention = Attention(
        v.num_attention_heads,
        v.num_attention_heads,
        dim,
        1 / math.sqrt(dim),
        None,
        projections=Projections(bias=True, output_bias=True),
    )
    side = v.max_image_size // v.patch_size * v.patch_size
    return Vision(
        hidden=v.hidden_size,
        vocab=0,
        layers=((attention, Mlp(v.intermediate_size, v.hidden_act, bias=True)),)
        * v.num_hidden_layers,
        norm=Norm(v.rms_norm_eps, "layer", bias=True),
        final_norm=False,
        head=Head(tied=True),
        patches=Patches(side, v.patch_size, bias=True, positions=v.interpolate_mode, spare_rows=1),
        tensors=TensorLayout(names=tuple(_NAMES.items())),
    )


def _merger(v: Any, hidden: int) -> tuple[Step, ...]:
    width, norm = v.hidden_size, Norm(v.rms_norm_eps)
    return (
        Normed(norm, width, f"{_MERGER}.before_rms"),
        Convolution(f"{_MERGER}.proj_conv", width, 2 * width, v.spatial_merge_size),
        Activated(v.hidden_act),
        Convolution(f"{_MERGER}.proj_out", 2 * width, 4 * width, 1),
        RowEnds(f"{_MERGER}.image_newline", 4 * width),
        Dense(f"{_MERGER}.mlp", 4 * width, hidden),
        Bracket(f"{_MERGER}.image_begin", f"{_MERGER}.image_end", hidden),
        Normed(norm, hidden, f"{_MERGER}.after_rms"),
    )
