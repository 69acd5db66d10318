"""Conversion of pooled vectors between wire columns and one entry per sequence."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate, pairwise

from baton.protocol import Pooled
from baton.protocol.token_columns import pack, unpack

_FLOAT = 4
"""Bytes of a float32."""


def split(pooled: Pooled | None) -> dict[int, bytes]:
    """Split columns into slot or handle -> vector, as packed float32.

    Raises `ValueError` if the columns disagree in length or a row occurs twice.
    """
    if pooled is None:
        return {}
    rows, counts = unpack(pooled.rows, "I"), unpack(pooled.counts, "I")
    if len(rows) != len(counts) or len(set(rows)) != len(rows):
        raise ValueError("the vectors do not belong to one sequence each")
    if _FLOAT * sum(counts) != len(pooled.values):
        raise ValueError("the vectors are longer or shorter than announced")
    edges = pairwise(accumulate((_FLOAT * count for count in counts), initial=0))
    return {row: pooled.values[a:b] for row, (a, b) in zip(rows, edges, strict=True)}


def join(vectors: Mapping[int, bytes]) -> Pooled | None:
    """Join slot or handle -> vector into columns, the inverse of `split`; None if empty."""
    if not vectors:
        return None
    return Pooled(
        rows=pack(vectors, "I"),
        counts=pack((len(vector) // _FLOAT for vector in vectors.values()), "I"),
        values=b"".join(vectors.values()),
    )
