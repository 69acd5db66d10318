"""Conformer encoders of audio (Gulati et al. 2020, arXiv:2005.08100), as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from baton_worker.spec.norm import Norm
from baton_worker.spec.vision import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Conformer:
    """Blocks of feed-forward, attention, convolution and feed-forward over the frames of a
    spectrogram. `prefix` is the checkpoint's."""

    prefix: str
    bins: int
    """Channels of a frame."""
    hidden: int
    num_layers: int
    num_heads: int
    intermediate: int
    """Channels inside a feed-forward."""
    kernel: int
    """Frames in the window of the depthwise convolution of a block."""
    norm: Norm


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalConformer(Conformer):
    """Gemma 3n's encoder (Universal Speech Model, arXiv:2303.01037): two convolutions, each with
    `channels`, windows of `size` and `stride` (frames, bins) and a cumulative group norm; blocks
    whose frames see those from `past` before to `future` behind them; one of `reduction` states."""

    channels: tuple[int, int]
    sizes: tuple[tuple[int, int], tuple[int, int]]
    strides: tuple[tuple[int, int], tuple[int, int]]
    group_eps: float
    past: int
    future: int
    softcap: float
    limit: float
    """Bound of states before norms."""
    half: float
    """Factor on feed-forwards."""
    reduction: int

    @property
    def stride(self) -> int:
        """Frames per state of the blocks."""
        return self.strides[0][0] * self.strides[1][0]


@dataclass(frozen=True, slots=True, kw_only=True)
class BiasedConformer(Conformer):
    """Phi-4-multimodal's encoder (arXiv:2503.01743): depthwise separable convolutions make one of
    `reduction` frames; attention has a learned bias for each distance up to `farthest`. States
    beyond `longest` are encoded part by part."""

    activation: str
    channels: int
    """Of the convolutions."""
    reduction: int
    farthest: int
    symmetric: bool
    longest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockConformer(Conformer):
    """Granite Speech's encoder (arXiv:2505.08699): frames attend within blocks of `block`, with
    learned vectors for distances up to `farthest` (Shaw et al. 2018, arXiv:1803.02155). Behind half
    of the layers, the distribution over `labels` of a CTC head joins the stream."""

    head_dim: int
    block: int
    farthest: int
    expansion: int
    """Channels of the convolution, in multiples of `hidden`."""
    labels: int


AnyConformer: TypeAlias = LocalConformer | BiasedConformer | BlockConformer


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftTokens:
    """A clip has `count` embeddings, whatever its length, and one behind them for the token that
    ends it (Gemma 3n). `name` is the checkpoint's of a table of `rows` vectors, which are embedded
    as states are: number `pad_row` where there are fewer states, then number `end_row`."""

    name: str
    rows: int
    eps: float
    count: int
    pad_row: int
    end_row: int
    end_token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformerTower:
    """The states of an encoder go through the steps of `projector`, in parts of `window` states if
    that is not 0, and replace the embeddings of the tokens `audio_token`; or they become
    `soft_tokens`."""

    encoder: AnyConformer
    audio_token: int
    hidden: int
    """Channels of an embedding."""
    projector: tuple[Step, ...] = ()
    window: int = 0
    soft_tokens: SoftTokens | None = None
