"""Norms, as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Norm:
    """A norm over the last axis: "rms" (Zhang and Sennrich 2019, arXiv:1910.07467) or "layer"
    (Ba et al. 2016, arXiv:1607.06450).

    The scale is the weight plus `offset` (1 where a checkpoint stores w of 1 + w); without
    `scaled` there is no weight, without `bias` no bias.
    """

    eps: float
    kind: str = "rms"
    bias: bool = False
    offset: float = 0.0
    scaled: bool = True


@dataclass(frozen=True, slots=True)
class GatedNorm:
    """Root mean squares over each of `groups` equal parts, and the silu of a gate, which is
    multiplied in before the norm or, without `gate_first`, after it. The scale is as wide as a part
    and serves them all where it is `shared`. Where the one part is `cut`, other ranks have more of
    its channels. `activation` is what is made of the gate: "silu" or "sigmoid"."""

    eps: float
    groups: int = 1
    gate_first: bool = True
    shared: bool = False
    cut: bool = False
    activation: str = "silu"
