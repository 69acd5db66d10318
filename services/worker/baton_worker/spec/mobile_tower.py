"""An encoder of images by convolutions and attention to fewer places, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class EdgeBlock:
    """A convolution to `expansion` times as many channels, and a projection."""

    kernel: int
    stride: int
    expansion: int
    width: int
    """Channels of the output."""


@dataclass(frozen=True, slots=True)
class InvertedBlock:
    """The universal inverted bottleneck of MobileNetV4: a convolution of each channel by itself
    with windows of `first`, an expansion, another with `middle`, and a projection; 0 for none."""

    first: int
    middle: int
    stride: int
    expansion: int
    width: int


@dataclass(frozen=True, slots=True)
class QueryBlock:
    """Attention of many query heads to one key head, whose places are `stride` times fewer a side,
    by a convolution with windows of `kernel`."""

    kernel: int
    num_heads: int
    head_dim: int
    stride: int
    width: int


MobileBlock: TypeAlias = EdgeBlock | InvertedBlock | QueryBlock


@dataclass(frozen=True, slots=True, kw_only=True)
class MobileTower:
    """MobileNetV5, the encoder of Gemma 3n, of blocks of MobileNetV4 (arXiv:2404.10518): the
    outputs of the stages `taps`, at the size of the first of them, are fused and pooled to `side`
    x `side` places of `width` channels, normed, and projected to `hidden` channels.

    After these is the embedding of the token that ends an image, number `end_row` of a table of
    `table` rows.
    """

    prefix: str
    """Of the tensors of the stages."""
    embedder: str
    """Of those of the projection."""
    stem: int
    """Channels of the first convolution."""
    stages: tuple[tuple[MobileBlock, ...], ...]
    taps: tuple[int, ...]
    fused: int
    """Channels between the two projections of the fusion."""
    side: int
    width: int
    eps: float
    hidden: int
    table: int
    end_row: int
    image_token: int
    end_token: int
