"""Rotary position embeddings, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

Parameter: TypeAlias = float | int | bool | str | tuple[float, ...] | None


@dataclass(frozen=True, slots=True)
class Sections:
    """Assignment of a rope's channels to several position axes, such as time, height and width
    (M-RoPE, Wang et al. 2024, arXiv:2409.12191).

    `sizes` count pairs of channels; `layout`, a key of `layers.rope.mrope.LAYOUTS`, assigns them to
    axes. If all axes of a token are equal, as in text, this is a plain rope.
    """

    sizes: tuple[int, ...]
    layout: str = "runs"


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding (Su et al. 2021, arXiv:2104.09864).

    Channel i rotates with channel i + dim / 2 (half-split), or with its neighbour if `interleaved`,
    as in the paper. `dim` is the number of rotated channels per head, `base` the wavelength base,
    `kind` a key of `layers.rope.rope.FREQUENCIES`, `max_position` the checkpoint's context length,
    and `parameters` those of the kind, as sorted (name, value) pairs. With `sections` a token has a
    position on each of several axes.
    """

    dim: int
    base: float
    max_position: int
    kind: str = "default"
    parameters: tuple[tuple[str, Parameter], ...] = ()
    interleaved: bool = False
    sections: Sections | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FourierRope(Rope):
    """A rope whose cosines and sines are mixed by matrices of the checkpoint (FoPE, Hua et al.
    2024, arXiv:2412.17739).

    Only the `kept` highest frequencies are mixed; the other channels are not rotated. With
    `each_head`, each KV head has matrices of its own, shared with its query heads.
    """

    num_heads: int
    num_kv_heads: int
    kept: int
    each_head: bool = True
