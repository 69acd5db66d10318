"""Common readers of Hugging Face configs: heads, rope, layer types; and the table of architectures.

A config is a plain attribute object (see `spec.hf_config`). Missing fields take the default of the
Hugging Face configuration class.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, TypeAlias

from baton.errors import ModelError
from baton.logs import logger
from baton_worker.spec import (
    Attention,
    Decoder,
    DualChunkAttention,
    Ffn,
    FourierRope,
    Glu,
    Head,
    Mask,
    Mixer,
    Mlp,
    Norm,
    Parameter,
    Projections,
    Rope,
    TensorLayout,
)
from baton_worker.spec.names import DEFAULT

Config: TypeAlias = Any
Family: TypeAlias = Callable[[Config], Decoder]

DECLARED: dict[str, str] = {}
"""Architecture name to "module:function", filled by `architecture` as the families are imported."""

log = logger(__name__)
_FOURIER = ("fope_init_factor", "fope_sep_head", "num_inv_freq")
"""Rope parameters that indicate FoPE."""
QKV = ("query", "key", "value")
GATE_UP = ("gate", "up")
_LAYOUT = tuple(field.name for field in dataclasses.fields(TensorLayout))


def architecture(*names: str) -> Callable[[Family], Family]:
    """Declare that a function maps the config of these architectures to their spec."""

    def declare(family: Family) -> Family:
        for name in names:
            DECLARED[name] = f"{family.__module__}:{family.__name__}"
        return family

    return declare


def spelled(c: Config, **fields: str) -> Config:
    """The config with fields copied to the names used here: `hidden_size="n_embd"`."""
    values = {name: getattr(c, field) for name, field in fields.items() if hasattr(c, field)}
    return SimpleNamespace(**vars(c) | values)


def rms(c: Config, eps: float = 1e-6, **changes: Any) -> Norm:
    """The RMS norm of the whole stack."""
    return Norm(eps=getattr(c, "rms_norm_eps", eps), **changes)


def layer_norm(eps: float, **changes: Any) -> Norm:
    """A LayerNorm, with a bias by default."""
    fields: dict[str, Any] = {"eps": eps, "kind": "layer", "bias": True}
    return Norm(**fields | changes)


def rope(
    c: Config,
    head_dim: int,
    *,
    parameters: Any = None,
    base: float = 10_000.0,
    partial: float | None = None,
    interleaved: bool = False,
) -> Rope:
    """The rotary settings, from `rope_parameters` or the older `rope_scaling` and `rope_theta`.
    As in transformers, `rope_scaling` replaces `rope_parameters`: people add it to a config.

    `parameters` are those of one layer type if a config has several; `base` and `partial` are the
    defaults of the architecture. Without `partial` the architecture turns whole heads, whatever
    its config says, as transformers does.
    """
    parameters = (
        parameters or getattr(c, "rope_scaling", None) or getattr(c, "rope_parameters", None)
    )
    if parameters and not isinstance(parameters, SimpleNamespace):
        raise ModelError("config.json: rope_parameters and rope_scaling must be objects.")
    values: dict[str, Any] = dict(vars(parameters)) if parameters else {}
    legacy_kind = values.pop("type", "default")
    kind = _kind(values.pop("rope_type", None) or legacy_kind, values)
    base = values.pop("rope_theta", None) or getattr(c, "rope_theta", None) or base
    share = values.pop("partial_rotary_factor", getattr(c, "partial_rotary_factor", partial))
    values |= _lengths(c, kind, values)
    share = 1.0 if share is None else share
    if kind == "proportional":
        values["share"], share = share, 1.0
    if partial is None:
        _check_whole(share, kind)
    return Rope(
        dim=_turned(head_dim, 1.0 if partial is None else share),
        base=float(base),
        max_position=c.max_position_embeddings,
        kind=kind,
        parameters=tuple(sorted((name, _frozen(value)) for name, value in values.items())),
        interleaved=interleaved,
    )


def _lengths(c: Config, kind: str, values: dict[str, Any]) -> dict[str, Any]:
    """The context lengths that a kind of scaling compares: in training before it, and here."""
    if kind not in ("llama3", "yarn", "longrope"):
        return {}
    name = "original_max_position_embeddings"
    original = getattr(c, name, None) or values.get(name, c.max_position_embeddings)
    if kind != "longrope":
        return {name: original}
    return {
        name: original,
        "served": getattr(c, "served_length", None) or c.max_position_embeddings,
    }


def _check_whole(share: float, kind: str) -> None:
    """Reject scaled frequencies of a part of each head: transformers has them for whole heads, and
    fails."""
    if share != 1.0 and kind not in ("default", "dynamic_alpha"):
        raise ModelError(
            f"partial_rotary_factor {share} beside the rope type '{kind}' cannot be served: this "
            "architecture turns whole heads. Remove it from config.json."
        )


def _turned(head_dim: int, share: float) -> int:
    """The number of channels of a head that turn."""
    dim = int(head_dim * share)
    if dim < 0 or dim % 2:
        raise ModelError(
            f"partial_rotary_factor {share} turns {dim} channels of a head of {head_dim}, and "
            "channels turn in pairs."
        )
    return dim


def _kind(kind: str, values: dict[str, Any]) -> str:
    """The key of `layers.rope.rope.FREQUENCIES` for a config's rope type."""
    if kind == "dynamic" and values.get("alpha"):
        return "dynamic_alpha"
    return {"su": "longrope"}.get(kind, kind)


def _frozen(value: Any) -> Parameter:
    return tuple(value) if isinstance(value, list) else value


def gqa(
    c: Config,
    *,
    default_head_dim: int | None = None,
    base: float = 10_000.0,
    partial: float | None = None,
    interleaved: bool = False,
    bias: bool = False,
    output_bias: bool = False,
    clip: float | None = None,
    **changes: Any,
) -> Attention:
    """Grouped-query attention with the head counts of the config.

    `base`, `partial` and `interleaved` are those of its `rope`, `bias`, `output_bias` and `clip` of
    its `Projections`; `changes` are fields of `spec.Attention`.
    """
    head_dim = getattr(c, "head_dim", None) or default_head_dim
    head_dim = head_dim or c.hidden_size // c.num_attention_heads
    if "rope" not in changes:
        changes["rope"] = rope(c, head_dim, base=base, partial=partial, interleaved=interleaved)
    attention = Attention(
        **{
            "num_heads": c.num_attention_heads,
            "num_kv_heads": getattr(c, "num_key_value_heads", None) or c.num_attention_heads,
            "head_dim": head_dim,
            "scale": 1.0 / math.sqrt(head_dim),
            "projections": Projections(bias, output_bias, clip),
        }
        | changes
    )
    return _in_chunks(c, _mixed(attention))


def _mixed(attention: Attention) -> Attention:
    """The rope as a `FourierRope` if the config has FoPE parameters."""
    rope = attention.rope
    values: dict[str, Any] = {} if rope is None else dict(rope.parameters)
    fourier = {name: values.pop(name, None) for name in _FOURIER}
    if rope is None or all(value is None for value in fourier.values()):
        return attention
    # Frequencies with less than one turn in the context were not learned.
    floor = 2 * math.pi / rope.max_position
    turning = sum(rope.base ** (-2 * pair / rope.dim) > floor for pair in range(rope.dim // 2))
    mixed = FourierRope(
        **_fields(rope) | {"parameters": tuple(sorted(values.items()))},
        num_heads=attention.num_heads,
        num_kv_heads=attention.num_kv_heads,
        kept=fourier["num_inv_freq"] or turning,
        each_head=bool(fourier["fope_sep_head"]),
    )
    return replace(attention, rope=mixed)


def _in_chunks(c: Config, attention: Attention) -> Attention:
    """The attention as `DualChunkAttention` if the config has its parameters."""
    dual_chunk = getattr(c, "dual_chunk_attention_config", None)
    if dual_chunk is None:
        return attention
    sparse = getattr(dual_chunk, "sparse_attention_config", None)
    if getattr(dual_chunk, "sparse_attention_enabled", sparse is not None):
        log.warning(
            "The checkpoint asks for sparse attention in long prompts; they run dense, which is "
            "slower and sees more."
        )
    return DualChunkAttention(
        **_fields(attention),
        chunk_size=getattr(dual_chunk, "chunk_size", 8192),
        local_size=getattr(dual_chunk, "local_size", 1024),
        trained=getattr(dual_chunk, "original_max_position_embeddings", 0),
    )


def _fields(part: Attention | Rope) -> dict[str, Any]:
    return {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}


def alibi(num_heads: int, steepest: float = 8.0) -> tuple[float, ...]:
    """ALiBi slopes (Press et al. 2021, arXiv:2108.12409): 2^-(8/n), 2^-(16/n)...; if the head count
    is no power of two, those of the power below, then every other one of the power above."""
    power = 2 ** math.floor(math.log2(num_heads))

    def slopes(count: int) -> list[float]:
        return [2.0 ** (-steepest * (head + 1) / count) for head in range(count)]

    return tuple(slopes(power) + slopes(2 * power)[::2][: num_heads - power])


def glu(c: Config, *, bias: bool = False, activation: Any = None) -> Glu:
    """The config's gated feed-forward; `activation` overrides the config's."""
    if activation is None:
        activation = getattr(c, "hidden_act", "silu")
    return Glu(c.intermediate_size, activation, bias)


def mlp(c: Config, *, bias: bool = True, activation: str = "gelu") -> Mlp:
    """The plain feed-forward of the config; `activation` is the architecture's default."""
    return Mlp(c.intermediate_size, getattr(c, "hidden_act", activation), bias)


def layer_types(c: Config, full_every: int) -> list[str]:
    """The type of each layer; by default every `full_every`-th is global."""
    named: list[str] | None = getattr(c, "layer_types", None)
    return named or [
        "sliding_attention" if (layer + 1) % full_every else "full_attention"
        for layer in range(c.num_hidden_layers)
    ]


def rotated(c: Config) -> list[bool]:
    """Whether each layer has a rope: 0 in `no_rope_layers` means it does not; by default every
    `no_rope_layer_interval`-th does not."""
    every = getattr(c, "no_rope_layer_interval", 4)
    listed = getattr(c, "no_rope_layers", None)
    layers = range(c.num_hidden_layers)
    return [bool(listed[n]) if listed else (n + 1) % every > 0 for n in layers]


def rotating_windows(c: Config, heads: Attention, window: int, full_every: int = 4) -> list[Mixer]:
    """One mixer per layer: windowed layers with rope, global layers without (NoPE, Yang et al.
    2025, arXiv:2501.18795)."""
    local, whole = replace(heads, mask=Mask(window)), replace(heads, rope=None)
    kinds = layer_types(c, full_every)
    return [local if kind == "sliding_attention" else whole for kind in kinds]


def sliding(
    c: Config, attention: Attention, slides: Callable[[int, int], bool] = operator.ge
) -> list[Attention]:
    """One mixer per layer, with the sliding windows of the config. Without `layer_types` a layer
    has one if its number and `max_window_layers` say so.

    Raises:
        ModelError: layers slide, and there is no window.
    """
    window = getattr(c, "sliding_window", 4096) if getattr(c, "use_sliding_window", False) else None
    first = getattr(c, "max_window_layers", 28)
    kinds = getattr(c, "layer_types", None) or [
        "sliding_attention" if window is not None and slides(layer, first) else "full_attention"
        for layer in range(c.num_hidden_layers)
    ]
    if window is None and "sliding_attention" in kinds:
        raise ModelError(
            "config.json: layer_types has sliding layers, but use_sliding_window is off or "
            "sliding_window is null. Set both, or make all layers full_attention."
        )
    windowed = replace(attention, mask=Mask(window))
    return [windowed if kind == "sliding_attention" else attention for kind in kinds]


def named(stem: str, **roles: str) -> tuple[tuple[str, str], ...]:
    """Checkpoint names under one stem: `named("model.layers.{layer}", query="attn.wq")`.

    Roles outside the layers are given in full.
    """
    return tuple(
        (role, f"{stem}.{name}" if "{layer}" in DEFAULT[role] else name)
        for role, name in roles.items()
    )


def decoder(
    c: Config,
    mixers: Mixer | Sequence[Mixer | None],
    ffns: Ffn | Sequence[Ffn | None],
    *,
    tied: bool = False,
    head: Head | None = None,
    **changes: Any,
) -> Decoder:
    """The common body: embedding, one mixer and one feed-forward per layer, head.

    `tied` is the architecture's default; `changes` are fields of `spec.Decoder` or of its
    `TensorLayout`.
    """
    layout = {name: changes.pop(name) for name in _LAYOUT if name in changes}
    count = c.num_hidden_layers
    mixers = mixers if isinstance(mixers, Sequence) else [mixers] * count
    ffns = ffns if isinstance(ffns, Sequence) else [ffns] * count
    tied = getattr(c, "tie_word_embeddings", tied)
    values = {
        "hidden": c.hidden_size,
        "vocab": c.vocab_size,
        "layers": tuple(zip(mixers, ffns, strict=True)),
        "head": replace(head or Head(), tied=tied),
        "max_length": c.max_position_embeddings,
        "tensors": TensorLayout(**layout),
    }
    if "norm" not in changes:
        values["norm"] = rms(c)
    return Decoder(**values | changes)
