"""Gemma 4's encoder of images: patches up to a number that the image processor sets, whose means
over windows of 3 x 3 are tokens."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from baton_worker.models.families.clip import part_of
from baton_worker.models.families.common import Config
from baton_worker.models.families.vision_common import image_token
from baton_worker.spec import (
    Attention,
    BoundedGlu,
    Decoder,
    Dense,
    Glu,
    Head,
    Merge,
    Mixer,
    Norm,
    Normed,
    NormedValueAttention,
    Patches,
    Projections,
    QkNorm,
    Rope,
    Sections,
    Standardized,
    TensorLayout,
    Vision,
    VisionTower,
)

_DEFAULTS: dict[str, Any] = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 16,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
    "head_dim": 64,
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "rope_parameters": None,
    "pooling_kernel_size": 3,
    "patch_size": 16,
    "position_embedding_size": 10_240,
    "use_clipped_linears": False,
    "standardize": False,
}
"""Defaults of transformers."""
_TOWER, _EMBEDDER = "vision_tower", "embed_vision"
_LAYER = f"{_TOWER}.encoder.layers.{{layer}}"
_NAMES = {
    "patches": f"{_TOWER}.patch_embedder.input_proj",
    "positions": f"{_TOWER}.patch_embedder.position_embedding_table",
    "mixer_norm": f"{_LAYER}.input_layernorm",
    "mixer_post_norm": f"{_LAYER}.post_attention_layernorm",
    "ffn_norm": f"{_LAYER}.pre_feedforward_layernorm",
    "ffn_post_norm": f"{_LAYER}.post_feedforward_layernorm",
    "query_norm": f"{_LAYER}.self_attn.q_norm",
    "key_norm": f"{_LAYER}.self_attn.k_norm",
    **{
        role: f"{_LAYER}.self_attn.{part}_proj"
        for role, part in {"query": "q", "key": "k", "value": "v", "output": "o"}.items()
    },
    **{role: f"{_LAYER}.mlp.{role}_proj" for role in ("gate", "up", "down")},
}
RENAMES = (
    (rf"^(model\.)?({_TOWER}|{_EMBEDDER})\.", r"\2."),
    (rf"^({_TOWER}\..*_proj)\.linear\.", r"\1."),
)
"""Prefixes of the tower, and of its projections."""


def tower(c: Config, hidden: int) -> VisionTower:
    """The tower of a config beside a decoder of `hidden` channels. A bound in a checkpoint whose
    config says nothing of them (`use_clipped_linears`) is refused as any tensor without a place."""
    v = part_of(c, "vision", _DEFAULTS)
    if v.attention_bias:
        raise AttributeError(
            "vision_config.attention_bias is set, and no encoder of Gemma 4 has it"
        )
    factor, width = math.sqrt(v.hidden_size), v.hidden_size
    names = (f"{_TOWER}.std_bias", f"{_TOWER}.std_scale") if v.standardize else ()
    steps = (
        Merge(v.pooling_kernel_size, "mean"),
        Standardized(factor, width, *names),
        Normed(Norm(v.rms_norm_eps, scaled=False), width, f"{_EMBEDDER}.norm"),
        Dense(f"{_EMBEDDER}.embedding_projection", width, hidden, bias=False),
    )
    return VisionTower(
        stack=_stack(v),
        projector=steps,
        image_token=image_token(c, 258_880),
        hidden=hidden,
        bidirectional=sees_both_ways(c),
    )


def sees_both_ways(c: Config) -> bool:
    """Whether the tokens of an image see one another in both directions in layers with a window."""
    return getattr(c.text_config, "use_bidirectional_attention", None) == "vision"


def with_window_spans(decoder: Decoder) -> Decoder:
    """A text model in whose layers with a window the tokens of an image see one another in both
    directions, within the window to the left."""

    def both_ways(mixer: Mixer | None) -> Mixer | None:
        if not isinstance(mixer, Attention) or mixer.mask.window is None:
            return mixer
        return replace(mixer, mask=replace(mixer.mask, spans=True))

    layers = tuple((both_ways(mixer), ffn) for mixer, ffn in decoder.layers)
    return replace(decoder, layers=layers)


def _stack(v: SimpleNamespace) -> Vision:
    dim, norm, bounded = v.head_dim, Norm(v.rms_norm_eps), bool(v.use_clipped_linears)
    attention = NormedValueAttention(
        v.num_attention_heads,
        v.num_key_value_heads,
        dim,
        1.0,
        _rope(v),
        projections=Projections(bounded=bounded),
        qk_norm=QkNorm(norm),
    )
    ffn = (BoundedGlu if bounded else Glu)(v.intermediate_size, v.hidden_activation)
    return Vision(
        hidden=v.hidden_size,
        vocab=0,
        layers=((attention, ffn),) * v.num_hidden_layers,
        norm=norm,
        final_norm=False,
        style="sandwich",
        head=Head(tied=True),
        patches=Patches(
            0,
            v.patch_size,
            positions="axes",
            stored="axes",
            table=v.position_embedding_size,
            flat=True,
            channels_last=True,
        ),
        tensors=TensorLayout(names=tuple(_NAMES.items())),
    )


def _rope(v: SimpleNamespace) -> Rope:
    """Columns turn the first half of a head, rows the second."""
    parameters = vars(v.rope_parameters or SimpleNamespace())
    if (kind := parameters.get("rope_type", "axial")) != "axial":
        raise AttributeError(f"vision_config has ropes of the type {kind}, which is not axial")
    quarter = v.head_dim // 4
    sections = Sections((quarter, quarter), "reversed")
    base = parameters.get("rope_theta", 100.0)
    return Rope(v.head_dim, base, 0, "axial_halves", sections=sections)
