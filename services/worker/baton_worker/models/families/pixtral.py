"""Pixtral's encoder (arXiv:2410.07073): images of any size, positions by rotation."""

from __future__ import annotations

import math
from typing import Any

from baton_worker.models.families.clip import part_of
from baton_worker.models.families.common import Config
from baton_worker.spec import (
    Attention,
    Glu,
    Head,
    Norm,
    Patches,
    Rope,
    Sections,
    TensorLayout,
    Vision,
)

_DEFAULTS: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 1024,
    "patch_size": 16,
    "hidden_act": "gelu",
    "rope_theta": 10_000.0,
}
_NAMES = {
    "patches": "patch_conv",
    "embedding_norm": "ln_pre",
    "mixer_norm": "transformer.layers.{layer}.attention_norm",
    "query": "transformer.layers.{layer}.attention.q_proj",
    "key": "transformer.layers.{layer}.attention.k_proj",
    "value": "transformer.layers.{layer}.attention.v_proj",
    "output": "transformer.layers.{layer}.attention.o_proj",
    "ffn_norm": "transformer.layers.{layer}.ffn_norm",
    "gate": "transformer.layers.{layer}.feed_forward.gate_proj",
    "up": "transformer.layers.{layer}.feed_forward.up_proj",
    "down": "transformer.layers.{layer}.feed_forward.down_proj",
}


def pixtral_vision(c: Config, prefix: str) -> Vision:
    """The stack, whose tensors are under `prefix`; `c` is the config around it."""
    v = part_of(c, "vision", _DEFAULTS)
    head_dim = getattr(v, "head_dim", None) or v.hidden_size // v.num_attention_heads
    rope_parameters = getattr(v, "rope_parameters", None)
    rope = Rope(
        head_dim,
        getattr(rope_parameters, "rope_theta", None) or v.rope_theta,
        v.image_size // v.patch_size,
        "axial_alternating",
        sections=Sections((head_dim // 4, head_dim // 4)),
    )
    attention = Attention(
        v.num_attention_heads, v.num_attention_heads, head_dim, 1 / math.sqrt(head_dim), rope
    )
    return Vision(
        hidden=v.hidden_size,
        vocab=0,
        layers=((attention, Glu(v.intermediate_size, v.hidden_act)),) * v.num_hidden_layers,
        norm=Norm(1e-5),
        embedding_norm=Norm(1e-5),
        final_norm=False,
        head=Head(tied=True),
        patches=Patches(v.image_size, v.patch_size, positions="none"),
        tensors=TensorLayout(
            names=tuple((role, f"{prefix}.{name}") for role, name in _NAMES.items())
        ),
    )
