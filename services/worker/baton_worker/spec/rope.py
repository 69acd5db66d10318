"""Rotary position embeddings, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

Parameter: TypeAlias = float | int | bool | str | tuple[float, ...] | None


@dataclass(frozen=True, slots=True)
class Sections:
    """How a rope deals out its channels among several axes of positions, such as time, height and
    width (M-RoPE, Wang et al. 2024, arXiv:2409.12191).

    `sizes` are pairs of channels; which axis gets which of them is said by `layout`, a row of
    `layers.sections.LAYOUTS`. Where all axes of a token are equal, as in text, this is a plain
    rope.
    """

    sizes: tuple[int, ...]
    layout: str = "runs"


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding (Su et al. 2021, arXiv:2104.09864).

    Channel i turns with channel i + dim / 2 (the half-split layout), or where `interleaved` with
    its neighbour, as the paper has it. `dim` is the number of rotated channels of each head,
    `base` the wavelength base, `kind` a row of `layers.rope.FREQUENCIES`, `max_position` the
    context that the checkpoint declares, and `parameters` what that kind needs, as sorted
    (name, value) pairs. With `sections` a token may have a position on each of several axes.
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

    Of the frequencies, only the `kept` highest are mixed; the other channels do not turn. Each key
    head, and the query heads that go with it, has matrices of its own where `each_head`.
    """

    num_heads: int
    num_kv_heads: int
    kept: int
    each_head: bool = True
