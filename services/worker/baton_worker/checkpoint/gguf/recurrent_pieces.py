"""Tensors of recurrent layers in a GGUF file, and the weights that they hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from baton_worker.spec import (
    DeltaNet,
    Mamba,
    Mixer,
    SelectiveStateSpace,
    ShortConv,
    StateSpace,
)


class Place(NamedTuple):
    """A stored tensor `blk.{layer}.{part}.{suffix}`; layer None is outside the stack. Tensors that
    are not module weights may lack the suffix."""

    layer: int | None
    part: str
    suffix: str


class Piece(NamedTuple):
    """A range of rows of a stored tensor."""

    name: str
    """The layers' name for it."""
    rows: int | None = None
    """None: all remaining rows."""
    heads: int | None = None
    """Head count of queries or keys."""
    tiles: tuple[int, int] | None = None
    """Rows of the value heads of a delta net: value heads per key head, and key heads."""


_Name: TypeAlias = Callable[[str, Place], str]
"""The name of a role in the layer of a stored tensor."""
_Rows: TypeAlias = Mapping[str, Mapping[str, int | None]]
"""Part to its roles with their numbers of rows, in stored order."""
_VECTORS = {("ssm_a", ""): "A_log", ("ssm_d", ""): "D", ("ssm_dt", "bias"): "dt_bias"}
"""Parts and suffixes of vectors with one number per head."""


def recurrent_pieces(mixer: Mixer | None, at: Place, of: _Name) -> list[Piece]:
    """The contents of a tensor of a recurrent layer; empty if its role alone says them."""
    if isinstance(mixer, Mamba):
        return _joined(_alike("ssm_in", mixer.channels, "scan_input", "scan_gate"), at, of)
    if isinstance(mixer, ShortConv):
        roles = ("conv_before", "conv_after", "conv_input")
        return _joined(_alike("shortconv.in_proj", mixer.channels, *roles), at, of)
    if isinstance(mixer, SelectiveStateSpace):
        return _vectors("ssm", at, of) or _joined(_SELECTIVE, at, of)
    if isinstance(mixer, StateSpace):
        alone = {"ssm_norm": {"ssm_norm": None}, "ssm_out": {"ssm_output": None}}
        return _vectors("ssm", at, of) or _joined(alone, at, of)
    if isinstance(mixer, DeltaNet):
        tiles = (mixer.num_heads // mixer.num_key_heads, mixer.num_key_heads)
        return _vectors("delta", at, of, tiles) or _joined(_delta_net(mixer), at, of, tiles)
    return []


def _joined(rows: _Rows, at: Place, of: _Name, tiles: Any = None) -> list[Piece]:
    return [
        Piece(of(role, at), count, tiles=None if role in _SHARED else tiles)
        for role, count in rows.get(at.part, {}).items()
    ]


def _vectors(module: str, at: Place, of: _Name, tiles: Any = None) -> list[Piece]:
    name = _VECTORS.get((at.part, at.suffix))
    return [] if name is None else [Piece(of(module, at._replace(suffix=name)), tiles=tiles)]


def _alike(part: str, rows: int, *roles: str) -> _Rows:
    return {part: dict.fromkeys(roles, rows)}


_SHARED = {
    *("delta_query", "delta_key", "delta_query_conv", "delta_key_conv"),
    *("delta_norm", "delta_output"),
}
"""Roles of a delta net without rows per value head."""


_SELECTIVE: _Rows = {
    part: {role: None}
    for part, role in {
        "ssm_conv1d": "ssm_conv_x",
        "ssm_x": "ssm_select",
        "ssm_dt": "ssm_step",
        "ssm_out": "ssm_output",
        "ssm_dt_norm": "ssm_step_norm",
        "ssm_b_norm": "ssm_write_norm",
        "ssm_c_norm": "ssm_read_norm",
    }.items()
}
"""Parts of a state space that selects from its convolved inputs."""
_LOW_RANK = {
    "ssm_conv1d_q": "delta_query_conv",
    "ssm_conv1d_k": "delta_key_conv",
    "ssm_conv1d_v": "delta_value_conv",
    "ssm_f_a": "delta_decay_down",
    "ssm_f_b": "delta_decay",
    "ssm_g_a": "delta_gate_down",
    "ssm_g_b": "delta_gate",
}
"""Parts of Kimi Delta Attention alone."""


def _delta_net(mixer: DeltaNet) -> _Rows:
    key, value = mixer.key_width, mixer.value_width
    mixed = {"delta_query": key, "delta_key": key, "delta_value": value}
    return {
        "attn_qkv": mixed,
        "ssm_conv1d": {f"{role}_conv": rows for role, rows in mixed.items()},
        "attn_gate": {"delta_gate": value},
        "ssm_beta": {"delta_strength": mixer.num_heads},
        "ssm_alpha": {"delta_decay": mixer.num_heads},
        "ssm_norm": {"delta_norm": mixer.value_dim},
        "ssm_out": {"delta_output": None},
        **{part: {role: None} for part, role in _LOW_RANK.items()},
    }
