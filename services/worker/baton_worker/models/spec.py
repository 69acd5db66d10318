"""What a model is, as pure data: a frozen tree that `build` turns into layers.

Nothing here imports torch, so a spec can be read, printed and compared anywhere. Every field has
two users in two architectures; a one-off becomes a spec type (and a layer file) of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

Parameter: TypeAlias = float | int | bool | str | tuple[float, ...] | None


@dataclass(frozen=True, slots=True)
class Norm:
    """Root-mean-square norm (Zhang and Sennrich 2019, arXiv:1910.07467) over the last axis."""

    eps: float


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding (Su et al. 2021, arXiv:2104.09864) in the half-split layout.

    `dim` is the number of rotated channels of each head, `base` the wavelength base,
    `kind` a row of `layers.rope.FREQUENCIES`, `max_position` the context that the checkpoint
    declares, and `parameters` what that kind needs, as sorted (name, value) pairs.
    """

    dim: int
    base: float
    max_position: int
    kind: str = "default"
    parameters: tuple[tuple[str, Parameter], ...] = ()


@dataclass(frozen=True, slots=True)
class Attention:
    """Grouped-query attention (Ainslie et al. 2023, arXiv:2305.13245) over the paged cache.

    `bias` is for the q, k and v projections, `output_bias` for the one after them. `qk_norm`
    normalises each head before the rotation. A token sees the last `window` tokens, itself
    included; None means all of them.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    rope: Rope
    bias: bool = False
    output_bias: bool = False
    qk_norm: Norm | None = None
    window: int | None = None


@dataclass(frozen=True, slots=True)
class Glu:
    """Gated feed-forward: down(activation(gate(x)) * up(x)) (Shazeer 2020, arXiv:2002.05202)."""

    intermediate: int
    activation: str = "silu"
    bias: bool = False


@dataclass(frozen=True, slots=True)
class Head:
    """The language head. `tied` reuses the embedding table as its weight."""

    tied: bool = False


Mixer: TypeAlias = Attention
Ffn: TypeAlias = Glu


@dataclass(frozen=True, slots=True)
class Decoder:
    """A causal language model: embedding, one (mixer, ffn) pair per layer, norm and head.

    `style` is a row of `models.decoder.STYLES`: where the norms sit around the residual stream.
    `names` lists only the checkpoint names that differ from `models.names.DEFAULT`.
    """

    hidden: int
    vocab: int
    layers: tuple[tuple[Mixer, Ffn], ...]
    norm: Norm
    head: Head
    style: str = "pre"
    names: tuple[tuple[str, str], ...] = field(default=())
