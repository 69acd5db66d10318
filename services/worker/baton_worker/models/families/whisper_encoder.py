"""Whisper's encoder (Radford et al. 2022, arXiv:2212.04356), on which most others build."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from baton_worker.models.families.common import Config, layer_norm, spelled
from baton_worker.spec import (
    Attention,
    AudioStack,
    FrameConvolution,
    Head,
    Mlp,
    Projections,
    TensorLayout,
)

_SPELLINGS = {
    "d_model": "hidden_size",
    "encoder_layers": "num_hidden_layers",
    "encoder_attention_heads": "num_attention_heads",
    "encoder_ffn_dim": "intermediate_size",
}
"""Newer names of fields."""
LARGE: dict[str, Any] = {
    "num_mel_bins": 128,
    "d_model": 1280,
    "encoder_layers": 32,
    "encoder_attention_heads": 20,
    "encoder_ffn_dim": 5120,
    "max_source_positions": 1500,
    "activation_function": "gelu",
}
"""Sizes of Whisper large-v3, which are the defaults of encoders built on it."""
_NAMES = {
    "positions": "embed_positions",
    "norm": "layer_norm",
    "mixer_norm": "layers.{layer}.self_attn_layer_norm",
    "query": "layers.{layer}.self_attn.q_proj",
    "key": "layers.{layer}.self_attn.k_proj",
    "value": "layers.{layer}.self_attn.v_proj",
    "output": "layers.{layer}.self_attn.out_proj",
    "ffn_norm": "layers.{layer}.final_layer_norm",
    "up": "layers.{layer}.fc1",
    "down": "layers.{layer}.fc2",
}


def whisper_encoder(part: Config, prefix: str, **changes: Any) -> AudioStack:
    """The encoder of a config with Whisper's fields, whose tensors are under `prefix`; `changes`
    are of the fields of `AudioStack`."""
    c = SimpleNamespace(**LARGE | vars(spelled(part, **_SPELLINGS)))
    hidden, act = c.d_model, c.activation_function
    head_dim = hidden // c.encoder_attention_heads
    attention = Attention(
        num_heads=c.encoder_attention_heads,
        num_kv_heads=c.encoder_attention_heads,
        head_dim=head_dim,
        scale=1.0 / math.sqrt(head_dim),
        rope=None,
        projections=Projections(bias=True, key_bias=False, output_bias=True),
    )
    stored = tuple((role, f"{prefix}.{name}") for role, name in _NAMES.items())
    fields: dict[str, Any] = {
        "hidden": hidden,
        "vocab": 0,
        "layers": ((attention, Mlp(c.encoder_ffn_dim, act, bias=True)),) * c.encoder_layers,
        "norm": layer_norm(1e-5),
        "head": Head(tied=True),
        "tensors": TensorLayout(names=stored),
        "stem": (
            FrameConvolution(f"{prefix}.conv1", c.num_mel_bins, hidden),
            FrameConvolution(f"{prefix}.conv2", hidden, hidden, stride=2),
        ),
        "num_positions": c.max_source_positions,
    }
    return AudioStack(**fields | changes)


def chunk_frames(stack: AudioStack) -> int:
    """Frames of a whole chunk: as many as there are positions for."""
    strides = math.prod(step.stride for step in stack.stem)
    return stack.num_positions * strides
