"""Embeddings and the language head, as data."""

from __future__ import annotations

from dataclasses import dataclass

from baton_worker.spec.norm import Norm


@dataclass(frozen=True, slots=True)
class Positions:
    """Learned positions, added to the token vectors: row position + `offset` of `size` rows.

    With `waves` the rows are not learned: their first half is the sines of the position over
    wavelengths from 2 pi to 10,000 times that, their second half the cosines (Vaswani et al. 2017,
    arXiv:1706.03762, with the halves one after the other)."""

    size: int
    offset: int = 0
    waves: bool = False


@dataclass(frozen=True, slots=True)
class Embedding:
    """Token ids to the first hidden state: scale * table[token] (+ positions), then `norm`.

    A table narrower than the hidden size (`width`) is projected up, and down again before the head.
    """

    scale: float = 1.0
    positions: Positions | None = None
    norm: Norm | None = None
    width: int | None = None
    extra: int = 0
    """Last rows of the table that are a tensor of their own in checkpoints."""


@dataclass(frozen=True, slots=True)
class LayerEmbeddings:
    """A token has an embedding of `width` channels of its own for every layer: a row of a table
    plus a projection of its first hidden state. A layer adds it behind its two halves, through a
    gate with `activation` (Gemma 3n)."""

    width: int
    vocab: int
    """Rows of the table; other tokens have row 0."""
    activation: str
    media_tokens: tuple[int, ...] = ()
    """Placeholders of media, which have the row of `media_row` (Gemma 4)."""
    media_row: int = 0


@dataclass(frozen=True, slots=True)
class Head:
    """The language head: logits = scale * (hidden W^T + b), bounded to (-softcap, softcap).

    `tied` reuses the embedding table as W; `unit_rows` normalises each row of W to unit length.
    """

    tied: bool = False
    bias: bool = False
    scale: float = 1.0
    softcap: float | None = None
    unit_rows: bool = False
    unsaid: int = 0
    """Last tokens of the vocabulary that have no row, and are never sampled."""
    filled: bool = False
    """Whether a loader writes zeros to the rows of these, as it does for a rank's share."""
