"""Vectors in place of tokens: what a model gives, what a request wants, what a step came to."""

from __future__ import annotations

from typing import Literal

import msgspec

PooledTask = Literal["embed", "classify", "score", "reward"]
Reach = Literal["last", "every", "whole"]
"""Which hidden states of a sequence count.

"last": only that of its last token, so its prefix may come from a cache. "every": those of all its
tokens, in as many chunks as need be. "whole": all of them in one step, since attention looks both
ways.
"""


class PoolingInfo(msgspec.Struct, frozen=True, array_like=True):
    """What a model gives in place of text, told once by its worker."""

    task: PooledTask
    """"embed": a vector; "classify": one number per label; "score": one number, of one text or of
    a pair; "reward": numbers for a text, or for each of its steps."""
    width: int
    """Numbers in a vector, or per label, or per step."""
    reach: Reach
    max_model_len: int
    """Longest input in tokens."""
    labels: tuple[str, ...] = ()
    matryoshka: bool = False
    """The first numbers of a vector are a vector of their own (Kusupati et al. 2022,
    arXiv:2205.13147)."""
    sizes: tuple[int, ...] = ()
    """The only dimensions that a matryoshka vector may be cut to; empty means any."""
    pairs: bool = False
    """Two texts can be judged together, as one sequence."""
    generates: bool = False
    """The model generates text as well."""
    steps: bool = False
    """A text comes to one row of `width` numbers per step, however many it has."""


class Pooling(msgspec.Struct, frozen=True, array_like=True):
    """What is wanted of a sequence: it is run, nothing is sampled, and its vector is the answer."""

    reach: Reach = "last"
    dimensions: int = 0
    """How many of the vector's numbers are kept, before it is normalised; 0 means all."""
    raw: bool = False
    """Leave the last step out: normalisation of a vector, sigmoid or softmax of scores."""
    second: int = 0
    """Index of the first token of the second text of a pair; 0 when there is no second text."""


class Pooled(msgspec.Struct, frozen=True, array_like=True):
    """The vectors that sequences have come to, in parallel columns."""

    rows: bytes
    """uint32: the worker's slot; on the way to a gateway, the gateway's handle"""
    counts: bytes
    """uint32 per row: numbers of its vector, or of all its vectors"""
    values: bytes
    """float32, concatenated"""
