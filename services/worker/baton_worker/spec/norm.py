"""Norms, as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Norm:
    """A norm over the last axis: "rms" (Zhang and Sennrich 2019, arXiv:1910.07467) or "layer" (Ba
    et al. 2016, arXiv:1607.06450).

    The scale is the weight plus `offset` (1 if a checkpoint stores w of 1 + w); without `scaled`
    there is no weight, without `bias` no bias.
    """

    eps: float
    kind: str = "rms"
    bias: bool = False
    offset: float = 0.0
    scaled: bool = True


@dataclass(frozen=True, slots=True)
class TimeCondition:
    """Norms before feed-forwards are scaled by 1 + up(gelu(down(e))), where e are the cosines and
    sines of `time`, of frequencies from 1 down to 1 / `base`, and down has `rank` rows (Voxtral
    Realtime, arXiv:2602.11298). The time is one for all tokens: the number of those by which an
    answer is behind what is heard."""

    time: float
    rank: int = 32
    base: float = 10_000.0


@dataclass(frozen=True, slots=True)
class GatedNorm:
    """Gated RMS norm over each of `groups` equal parts. The gate is multiplied in before the norm
    or, without `gate_first`, after it, through `activation`: "silu" or "sigmoid". The scale has the
    width of one part if it is `shared`. If the single part is `cut`, other ranks hold the rest of
    its channels."""

    eps: float
    groups: int = 1
    gate_first: bool = True
    shared: bool = False
    cut: bool = False
    activation: str = "silu"
