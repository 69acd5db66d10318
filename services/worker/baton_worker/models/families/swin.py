"""Swin (arXiv:2103.14030) as the tower of LLaVA."""

from __future__ import annotations

from typing import Any

from baton_worker.models.families.clip import part_of
from baton_worker.models.families.common import Config
from baton_worker.spec import Head, Norm, Patches, Swin, TensorLayout

_DEFAULTS: dict[str, Any] = {
    "image_size": 224,
    "patch_size": 4,
    "embed_dim": 96,
    "depths": [2, 2, 6, 2],
    "num_heads": [3, 6, 12, 24],
    "window_size": 7,
    "mlp_ratio": 4.0,
    "qkv_bias": True,
    "hidden_act": "gelu",
    "use_absolute_embeddings": False,
    "layer_norm_eps": 1e-5,
}
_LAYER = r"(\.layers\.\d+\.blocks\.\d+)"
RENAMES = (
    (rf"{_LAYER}\.attention\.self\.(q|k|v)(?:uery|ey|alue)\.", r"\1.attention.\2_proj."),
    (
        rf"{_LAYER}\.attention\.self\.relative_position_bias_table$",
        r"\1.attention.relative_position_bias.relative_position_bias_table",
    ),
    (rf"{_LAYER}\.attention\.output\.dense\.", r"\1.attention.o_proj."),
    (rf"{_LAYER}\.intermediate\.dense\.", r"\1.mlp.fc1."),
    (rf"{_LAYER}\.output\.dense\.", r"\1.mlp.fc2."),
)
"""Names of older checkpoints."""


def swin_vision(c: Config, prefix: str) -> Swin:
    """The stages, whose last states are seen as they are."""
    v = part_of(c, "vision", _DEFAULTS)
    if getattr(c, "vision_feature_layer", -1) not in (-1, len(v.depths)):
        raise AttributeError("vision_feature_layer other than -1, the last stage of a Swin tower")
    if getattr(c, "vision_feature_select_strategy", "") != "full":
        raise AttributeError("vision_feature_select_strategy full, as Swin has no class token")
    names = {
        "patches": f"{prefix}.embeddings.patch_embeddings.projection",
        "patch_norm": f"{prefix}.embeddings.norm",
        "positions": f"{prefix}.embeddings.position_embeddings",
    }
    return Swin(
        hidden=v.embed_dim,
        vocab=0,
        layers=(),
        norm=Norm(v.layer_norm_eps, "layer", bias=True),
        head=Head(tied=True),
        patches=Patches(
            v.image_size,
            v.patch_size,
            bias=True,
            positions="exact" if v.use_absolute_embeddings else "none",
            stored="batched",
            norm=Norm(1e-5, "layer", bias=True),
        ),
        tensors=TensorLayout(names=tuple(names.items())),
        name=prefix,
        depths=tuple(v.depths),
        num_heads=tuple(v.num_heads),
        window=v.window_size,
        ratio=v.mlp_ratio,
        activation=v.hidden_act,
        bias=v.qkv_bias,
    )
