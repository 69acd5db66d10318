"""Pooling: capabilities of a model, parameters of a request, vectors of a step."""

from __future__ import annotations

from typing import Literal

import msgspec

PooledTask = Literal["embed", "classify", "score", "reward"]
Reach = Literal["last", "every", "whole"]
"""Hidden states that pooling reads.

"last": that of the last token only, so the prefix may come from the prefix cache. "every": those of
all tokens, over several prefill chunks. "whole": those of all tokens, in one step, since attention
is bidirectional.
"""


class PoolingInfo(msgspec.Struct, frozen=True, array_like=True):
    """Pooling capabilities of a model, sent in the worker's `Hello`."""

    task: PooledTask
    """"embed": a vector; "classify": one number per label; "score": one number for a text or a
    pair of texts; "reward": numbers for a text, or for each of its steps."""
    width: int
    """Dimension of a vector, number of labels, or numbers per step."""
    reach: Reach
    max_model_len: int
    """Maximum input length in tokens."""
    labels: tuple[str, ...] = ()
    matryoshka: bool = False
    """Vectors may be truncated to their first dimensions (Kusupati et al. 2022,
    arXiv:2205.13147)."""
    sizes: tuple[int, ...] = ()
    """Dimensions that a matryoshka vector may be truncated to; empty means any."""
    pairs: bool = False
    """Accepts a pair of texts, encoded as one sequence."""
    generates: bool = False
    """The model generates text as well."""
    steps: bool = False
    """The result has one row of `width` numbers per step of the text."""


class Pooling(msgspec.Struct, frozen=True, array_like=True):
    """Pooling parameters of one sequence. It is prefilled and pooled; no token is sampled."""

    reach: Reach = "last"
    dimensions: int = 0
    """Dimensions to keep, truncated before normalisation; 0 means all."""
    raw: bool = False
    """Skip the final normalisation of a vector, or sigmoid or softmax of scores."""
    second: int = 0
    """Index of the first token of the second text of a pair; 0 if there is no second text."""
    aligned_from: int = 0
    """Index of the first token whose position among the encoder states of a recording is requested;
    the result has one number per token instead of a vector. 0: none. `reach` is "every" then."""
    num_states: int = 0
    """Number of leading encoder states that contain sound, if positions are requested."""


class Pooled(msgspec.Struct, frozen=True, array_like=True):
    """Pooled vectors of finished sequences, in parallel columns."""

    rows: bytes
    """uint32 per row: the worker's slot in `Result`, the gateway's handle in `Tokens`"""
    counts: bytes
    """uint32 per row: numbers in its vector, or in all of its vectors"""
    values: bytes
    """float32, concatenated over rows"""
