"""Reading a Hugging Face config once: heads, rope, layer types; and the table of architectures.

A config is a plain attribute object (see `models.config`). Fields that a config may leave out
take the default of the Hugging Face configuration class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from baton_worker.models.spec import Attention, Decoder, Glu, Head, Mixer, Norm, Parameter, Rope

Config: TypeAlias = Any
Family: TypeAlias = Callable[[Config], Decoder]

DECLARED: dict[str, str] = {}
"""Architecture name to "module:function", filled by `architecture` as the families are imported."""


def architecture(*names: str) -> Callable[[Family], Family]:
    """Declare that a function maps the config of these architectures to their spec."""

    def declare(family: Family) -> Family:
        for name in names:
            DECLARED[name] = f"{family.__module__}:{family.__name__}"
        return family

    return declare


def rms(c: Config) -> Norm:
    """The norm that the whole stack shares."""
    return Norm(eps=getattr(c, "rms_norm_eps", 1e-6))


def rope(c: Config, head_dim: int) -> Rope:
    """The rotary settings, from `rope_parameters` or the older `rope_scaling` and `rope_theta`."""
    given = getattr(c, "rope_parameters", None) or getattr(c, "rope_scaling", None)
    values: dict[str, Any] = dict(vars(given)) if given else {}
    legacy_kind = values.pop("type", "default")
    kind = values.pop("rope_type", legacy_kind)
    base = values.pop("rope_theta", None) or getattr(c, "rope_theta", None) or 10_000.0
    partial = values.pop("partial_rotary_factor", getattr(c, "partial_rotary_factor", None))
    if kind in ("llama3", "yarn"):
        original = getattr(c, "original_max_position_embeddings", None)
        values.setdefault("original_max_position_embeddings", c.max_position_embeddings)
        values["original_max_position_embeddings"] = (
            original or values["original_max_position_embeddings"]
        )
    return Rope(
        dim=int(head_dim * (1.0 if partial is None else partial)),
        base=float(base),
        max_position=c.max_position_embeddings,
        kind=kind,
        parameters=tuple(sorted((name, _frozen(value)) for name, value in values.items())),
    )


def _frozen(value: Any) -> Parameter:
    return tuple(value) if isinstance(value, list) else value


def gqa(
    c: Config,
    *,
    bias: bool = False,
    output_bias: bool = False,
    qk_norm: Norm | None = None,
    window: int | None = None,
    default_head_dim: int | None = None,
) -> Attention:
    """Grouped-query attention with the head counts of the config."""
    head_dim = getattr(c, "head_dim", None) or default_head_dim
    head_dim = head_dim or c.hidden_size // c.num_attention_heads
    return Attention(
        num_heads=c.num_attention_heads,
        num_kv_heads=getattr(c, "num_key_value_heads", None) or c.num_attention_heads,
        head_dim=head_dim,
        scale=1.0 / math.sqrt(head_dim),
        rope=rope(c, head_dim),
        bias=bias,
        output_bias=output_bias,
        qk_norm=qk_norm,
        window=window,
    )


def glu(c: Config, *, bias: bool = False) -> Glu:
    """The gated feed-forward of the config."""
    return Glu(c.intermediate_size, getattr(c, "hidden_act", "silu"), bias)


def sliding(c: Config, attention: Attention) -> list[Mixer]:
    """One mixer per layer: the config says which layers see only a window."""
    window = getattr(c, "sliding_window", 4096) if getattr(c, "use_sliding_window", False) else None
    windowed = replace(attention, window=window)
    first = getattr(c, "max_window_layers", 28)
    kinds = getattr(c, "layer_types", None) or [
        "sliding_attention" if window is not None and layer >= first else "full_attention"
        for layer in range(c.num_hidden_layers)
    ]
    return [windowed if kind == "sliding_attention" else attention for kind in kinds]


def decoder(c: Config, mixers: Mixer | Sequence[Mixer], ffn: Glu) -> Decoder:
    """The common body: one mixer and one feed-forward per layer between embedding and head."""
    if isinstance(mixers, Attention):
        mixers = [mixers] * c.num_hidden_layers
    return Decoder(
        hidden=c.hidden_size,
        vocab=c.vocab_size,
        layers=tuple((mixer, ffn) for mixer in mixers),
        norm=rms(c),
        head=Head(tied=getattr(c, "tie_word_embeddings", False)),
    )
